module aiperf-svc/tests/cluster/lws

go 1.26

require sigs.k8s.io/lws v0.8.0

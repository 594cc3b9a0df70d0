//go:build tools

// Package tools pins the version of metrics-server, which the cluster build compiles as it is.
package tools

import _ "sigs.k8s.io/metrics-server/cmd/metrics-server"

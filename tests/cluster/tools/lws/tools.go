//go:build tools

// Package tools pins the version of LeaderWorkerSet's controller, which the cluster build compiles as it is.
package tools

import _ "sigs.k8s.io/lws/cmd"

//go:build tools

// Package tools pins the version of Kueue, whose controller the cluster build compiles as it is.
package tools

import _ "sigs.k8s.io/kueue/cmd/kueue"

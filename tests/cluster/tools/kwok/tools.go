//go:build tools

// Package tools pins the version of kwok, which the cluster build compiles as it is.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"

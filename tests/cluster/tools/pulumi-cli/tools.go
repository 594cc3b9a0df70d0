//go:build tools

// Package tools pins the version of the Pulumi CLI, which the cluster build compiles as it is.
package tools

import _ "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"

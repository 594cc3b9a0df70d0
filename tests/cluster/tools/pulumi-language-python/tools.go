//go:build tools

// Package tools pins the version of Pulumi's Python language host, which the cluster build compiles as it is.
// It is the newest host whose module the checksum database knows.
package tools

import _ "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python"

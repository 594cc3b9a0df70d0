// Command pulumi-resource-kubernetes is Pulumi's Kubernetes provider.
//
// The upstream command embeds generated files that its module does not hold. The engine asks a provider for its
// schema only to generate code, so a schema with nothing but a name serves every program at run time.
package main

import (
	"fmt"

	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version"
)

func main() {
	schema := fmt.Sprintf(`{"name": "kubernetes", "version": %q}`, version.Version)
	provider.Serve("kubernetes", version.Version, []byte(schema), nil)
}

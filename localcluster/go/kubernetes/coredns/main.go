// Command coredns is CoreDNS with only the plugins that the local cluster's Corefile names.
// The stock build carries some fifty plugins and several cloud SDKs; this one shares nearly
// all of its packages with Kubernetes.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

// Order matters: a query passes the plugins from first to last.
func init() {
	dnsserver.Directives = []string{"bind", "health", "ready", "errors", "cache", "template", "kubernetes"}
}

func main() { coremain.Run() }

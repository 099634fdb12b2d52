//go:build tools

// Package tools keeps JobSet in go.mod.
package tools

import _ "sigs.k8s.io/jobset"

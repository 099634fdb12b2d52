//go:build tools

// Package tools keeps kwok in go.mod.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"

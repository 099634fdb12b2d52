//go:build tools

// Package tools keeps etcd in go.mod.
package tools

import _ "go.etcd.io/etcd/server/v3"

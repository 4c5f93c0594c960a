//go:build !linux

package child

import "syscall"

func endWithParent(*syscall.SysProcAttr) {}

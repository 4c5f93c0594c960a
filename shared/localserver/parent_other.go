//go:build unix && !linux

package localserver

import "syscall"

// dieWithParent has no counterpart here: Close must be called.
func dieWithParent(a *syscall.SysProcAttr) *syscall.SysProcAttr { return a }

package localserver

import "syscall"

// dieWithParent has the kernel kill the server when we end in whatever way, a panic or kill -9
// included. SIGKILL reaches a stopped server too.
func dieWithParent(a *syscall.SysProcAttr) *syscall.SysProcAttr {
	a.Pdeathsig = syscall.SIGKILL
	return a
}

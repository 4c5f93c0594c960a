package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"gatehouse/auth/internal/password"
)

// hashing is the command by which serve starts this program again, to hash passwords in a process of low priority.
// The usage text doesn't list it: it is not for operators.
const hashing = "hashing"

// hashingCommand is that start. The child needs no setting, so it gets none: the environment is full of
// secrets.
func hashingCommand() func() *exec.Cmd {
	program, err := os.Executable()
	if runtime.GOOS == "linux" {
		program = "/proc/self/exe" // this very program, when its file has been replaced meanwhile, too
	}
	return func() *exec.Cmd {
		return &exec.Cmd{Path: program, Args: []string{"auth", hashing}, Env: []string{}, Dir: "/", Err: err}
	}
}

// hashing is the command of that name. It ends when its daemon does, not when a signal stops both: requests in flight
// still want their hashes.
func (p *program) hashing(_ context.Context, args []string) error {
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	in, ok := p.stdin.(*os.File)
	out, ok2 := p.stdout.(*os.File)
	err := password.ErrByHand
	if len(args) == 0 && ok && ok2 {
		err = password.Serve(in, out)
	}
	if err == password.ErrByHand {
		fmt.Fprintf(p.stderr, "auth: %s: %v\n", hashing, err)
		return errUsage
	}
	return err
}

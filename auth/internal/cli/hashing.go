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

// hashing is the command with which the command serve starts this program again, to hash passwords in a process of low
// priority. It is not for operators, so the usage text does not list it.
const hashing = "hashing"

// hashingCommand returns the function that makes the command for the hashing process. The process needs no settings,
// and gets no environment, since that contains secrets.
func hashingCommand() func() *exec.Cmd {
	program, err := os.Executable()
	if runtime.GOOS == "linux" {
		program = "/proc/self/exe" // the running program, even if its file has been replaced
	}
	return func() *exec.Cmd {
		return &exec.Cmd{Path: program, Args: []string{"auth", hashing}, Env: []string{}, Dir: "/", Err: err}
	}
}

// hashing runs the command "auth hashing". It ends when the daemon closes its input. It ignores the signals that the
// daemon and the hashing process both get, since the daemon's requests in flight still need hashes.
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

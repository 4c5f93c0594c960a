package subprocess

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

// TestMain lets the test binary be its own child: with CHILD set it starts a child itself, says its
// pid, and waits to be killed.
func TestMain(m *testing.M) {
	if os.Getenv("CHILD") != "" {
		p, err := Start(exec.Command("sleep", "60"))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.PID())
		<-p.Ended()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestStop(t *testing.T) {
	f := func(script string, grace time.Duration, want string) {
		t.Helper()
		cmd := exec.Command("sh", "-c", script)
		out, err := cmd.StdoutPipe()
		must.Succeed(t, err)
		p, err := Start(cmd)
		must.Succeed(t, err)
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it has set its traps
			t.Fatal(err)
		}
		got := fmt.Sprint(p.Stop(grace))
		if !strings.HasSuffix(got, want) {
			t.Errorf("%s: ended with %q, want %q", script, got, want)
		}
		select {
		case <-p.Ended():
		default:
			t.Errorf("%s: still there after Stop", script)
		}
		if got := fmt.Sprint(p.Stop(grace)); !strings.HasSuffix(got, want) {
			t.Errorf("%s: stopped again it says %q, want %q", script, got, want)
		}
	}
	f(`trap 'exit 0' TERM; echo; while :; do sleep 0.01; done`, time.Minute, "<nil>")
	f(`trap 'exit 3' TERM; echo; while :; do sleep 0.01; done`, time.Minute, "exit status 3")
	f(`trap '' TERM; echo; while :; do sleep 0.01; done`, 50*time.Millisecond, "signal: killed")
	if _, err := Start(exec.Command("/no/such/program")); err == nil {
		t.Error("a program that is not there started")
	}
}

func TestEndsWithOwner(t *testing.T) {
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), "CHILD=1")
	out, err := owner.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, owner.Start())
	var pid int
	must.Succeed(t, must.ErrOf(fmt.Fscan(out, &pid)))
	owner.Process.Kill()
	io.Copy(io.Discard, out) // the child holds no part of this pipe
	owner.Wait()
	// The kernel signals it at once; init needs a moment to collect it.
	t.Cleanup(func() {
		if t.Failed() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	await.True(t, "the child ends with its owner", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return errors.Is(err, os.ErrNotExist) || strings.Contains(string(stat), ") Z ")
	})
}

package localserver

import (
	"context"
	"errors"
	"fmt"
	"net"
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

func postgres(t *testing.T, o PostgresOptions) *Server {
	t.Helper()
	s, err := Postgres(t.Context(), o)
	started(t, err)
	return s
}

// It answers, freezes as a whole, dies as a whole and comes back at the same address.
func TestPostgres(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := postgres(t, PostgresOptions{})
	defer s.Close()
	if url := s.PostgresURL("x y"); !strings.HasPrefix(url, "postgres://postgres@/x%20y?host=%2F") {
		t.Errorf("URL %s", url)
	}
	// A connection whose backend is a process of its own.
	c, err := net.Dial(s.Network(), s.Addr())
	must.Succeed(t, err)
	defer c.Close()
	must.Succeed(t, s.Stop())
	for _, pid := range append(s.family(), s.PID()) {
		// The kernel stops a process when it next runs.
		await.True(t, fmt.Sprintf("process %d is stopped", pid), func() bool { return procState(t, pid) == "T" })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := postgresReady(ctx, s.Network(), s.Addr()); err == nil {
		t.Error("a frozen server answers")
	}
	must.Succeed(t, s.Cont())
	if err := postgresReady(t.Context(), s.Network(), s.Addr()); err != nil {
		t.Error(err)
	}
	for range 3 {
		s.Kill()
		if pids := workingIn(s.Dir() + "/data"); len(pids) > 0 {
			t.Errorf("processes %v are left", pids)
		}
		must.Succeed(t, s.Restart(t.Context()))
	}
	s.Close()
	if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

// A forgotten server's files go when its program is killed. The test runs itself as that program.
func TestPostgres_forgotten(t *testing.T) {
	if os.Getenv("LOCALSERVER_FORGET") != "" {
		s := postgres(t, PostgresOptions{})
		must.Succeed(t, s.Forget())
		os.Stdout.WriteString("dir " + s.Dir() + "\n")
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	_, err := Find("postgres")
	must.Have(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestPostgres_forgotten$", "-test.v")
	cmd.Env = append(os.Environ(), "LOCALSERVER_FORGET=1")
	out, _ := cmd.Output() // killed
	_, after, ok := strings.Cut(string(out), "dir ")
	if !ok {
		t.Fatalf("the child said no folder: %s", out)
	}
	dir := strings.Fields(after)[0]
	await.True(t, dir+" goes", func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
}

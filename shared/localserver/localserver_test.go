package localserver

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

func redis(t *testing.T, o RedisOptions) *Server {
	t.Helper()
	s, err := Redis(t.Context(), o)
	started(t, err)
	t.Cleanup(s.Close)
	return s
}

// ask sends inline commands and returns the first line of each answer.
func ask(t *testing.T, s *Server, commands ...string) (lines []string) {
	t.Helper()
	c, err := net.Dial(s.Network(), s.Addr())
	must.Succeed(t, err)
	defer c.Close()
	r := bufio.NewReader(c)
	for _, command := range commands {
		fmt.Fprintf(c, "%s\r\n", command)
		line, err := r.ReadString('\n')
		must.Succeed(t, err)
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

func TestRedis(t *testing.T) {
	f := func(o RedisOptions, talk ...string) {
		t.Helper()
		s := redis(t, o)
		for i := 0; i < len(talk); i += 2 {
			if got := ask(t, s, strings.Split(talk[i], "\n")...); got[len(got)-1] != talk[i+1] {
				t.Errorf("%q answers %q, want %q", talk[i], got, talk[i+1])
			}
		}
	}
	f(RedisOptions{}, "PING", "+PONG")
	f(RedisOptions{Socket: true}, "PING", "+PONG")
	f(RedisOptions{Password: "secret"},
		"PING", "-NOAUTH Authentication required.",
		"AUTH secret\nPING", "+PONG")
	f(RedisOptions{Password: "secret", Users: map[string]string{"alice": "a:b"}},
		"AUTH alice a:b\nPING", "+PONG",
		"AUTH alice secret", "-WRONGPASS invalid username-password pair or user is disabled.")
	f(RedisOptions{Config: []string{"maxmemory 5mb"}}, "CONFIG GET maxmemory", "*2")
}

func TestServer_signals(t *testing.T) {
	defer goleak.VerifyNone(t)
	s, err := Redis(t.Context(), RedisOptions{})
	started(t, err)
	defer s.Close()
	addr, pid := s.Addr(), s.PID()
	must.Succeed(t, s.Stop())
	if state := procState(t, pid); state != "T" {
		t.Fatalf("state %s after Stop, want T", state)
	}
	must.Succeed(t, s.Cont())
	ask(t, s, "PING")
	s.Kill()
	select {
	case <-s.Ended():
	default:
		t.Error("still running after Kill")
	}
	must.Succeed(t, s.Restart(t.Context()))
	if s.Addr() != addr || s.PID() == pid {
		t.Errorf("restarted at %s as %d; was at %s as %d", s.Addr(), s.PID(), addr, pid)
	}
	ask(t, s, "PING")
	s.Stop()
	s.Close()
	if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func procState(t *testing.T, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	must.Succeed(t, err)
	return strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+1:]))[0]
}

func TestStart_failure(t *testing.T) {
	_, err := Redis(t.Context(), RedisOptions{Config: []string{"no such directive"}})
	if errors.Is(err, ErrMissing) {
		must.Have(t, err)
	}
	if err == nil || !strings.Contains(err.Error(), "no such directive") {
		t.Errorf("error %v, want the server's own words", err)
	}
}

func TestFind(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if path, err := Find("sh"); err != nil || !strings.HasPrefix(path, "/usr/") {
		t.Errorf("Find outside of PATH: %q %v", path, err)
	}
	if _, err := Find("no-such-server"); !errors.Is(err, ErrMissing) {
		t.Errorf("Find of nothing: %v", err)
	}
	if v := version("/usr/lib/postgresql/15/bin"); v != 15 {
		t.Errorf("version %d", v)
	}
}

// A server must die with a program that panics. The test runs itself as that program.
func TestServer_parentPanics(t *testing.T) {
	if os.Getenv("LOCALSERVER_PANIC") != "" {
		s := redis(t, RedisOptions{})
		s.Forget()
		fmt.Println("pid", s.PID())
		s.Stop() // even a stopped one
		go panic("as tests do")
		select {}
	}
	must.Have(t, must.ErrOf(Find("redis-server")))
	cmd := exec.Command(os.Args[0], "-test.run=^TestServer_parentPanics$", "-test.v")
	cmd.Env = append(os.Environ(), "LOCALSERVER_PANIC=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("the child did not panic: %s", out)
	}
	_, after, ok := strings.Cut(string(out), "pid ")
	if !ok {
		t.Fatalf("the child said no pid: %s", out)
	}
	pid, err := strconv.Atoi(strings.Fields(after)[0])
	must.Succeed(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	await.True(t, "the server ends with its program", func() bool {
		state := procState(t, pid)
		return state == "" || state == "Z"
	})
}

func TestMemcached(t *testing.T) {
	for _, o := range []MemcachedOptions{{}, {Socket: true}, {Args: []string{"-I", "2m"}}} {
		s, err := Memcached(t.Context(), o)
		started(t, err)
		defer s.Close()
		if got := ask(t, s, "incr k 1", "set k 0 0 1\r\n5", "incr k 2")[2]; got != "7" {
			t.Errorf("%+v: %q", o, got)
		}
		must.Succeed(t, s.Restart(t.Context()))
		if got := ask(t, s, "get k")[0]; got != "END" {
			t.Errorf("%+v: %q after a restart", o, got)
		}
	}
}

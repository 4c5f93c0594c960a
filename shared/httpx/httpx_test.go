package httpx

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/shared/must"
)

func TestListen_unixSockets(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "gate.sock")
	l, err := Listen(t.Context(), "unix", path)
	must.Succeed(t, err)
	if _, err := Listen(t.Context(), "unix", path); err == nil ||
		!strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a second listener on a live socket: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	l, err = Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatalf("a stale socket file must not stop a start: %v", err)
	}
	l.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket file is left behind: %v", err)
	}

	plain := filepath.Join(dir, "plain")
	must.Succeed(t, os.WriteFile(plain, []byte("precious"), 0o600))
	if _, err := Listen(t.Context(), "unix", plain); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a plain file in the way: %v", err)
	}
	if b, _ := os.ReadFile(plain); string(b) != "precious" {
		t.Error("the plain file was touched")
	}
}

func TestListen_exclusive(t *testing.T) {
	l, err := Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	if second, err := Listen(t.Context(), "tcp", l.Addr().String()); err == nil {
		second.Close()
		t.Error("two listeners share one port")
	}
}

package imagetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/subprocess"
)

// Container is one program to be run in a sandbox as in a container: with the image's root, which is read-only, without
// capabilities, and in a network that has nothing but loopback.
type Container struct {
	Image
	Argv   []string
	Env    map[string]string // in addition to the image's environment
	UID    int
	Mounts map[string]string // path in the container -> folder of this machine, which is mounted read-only
	// Hosts maps NAME:PORT in the container's network to the address of a server on this machine, which may be the path
	// of a unix socket.
	Hosts map[string]string
}

// Running is a container that has been started.
type Running struct {
	*subprocess.Process // bubblewrap, which ends when the program ends
	Log                 *subprocess.Lines
	Forwards            map[string]*Forward // by NAME:PORT in Container.Hosts
	program             *os.Process         // the process of the program in the container
	args                []string            // bubblewrap's arguments, up to the program
	credential          *syscall.Credential
}

// Need skips the test if this machine cannot make a sandbox.
func Need(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("entering a container's network needs root")
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		must.Have(t, errors.New("bwrap is missing: apt-get install bubblewrap"))
	}
	// Try it as the user of the images: on some machines only root can make namespaces, or only root can use temporary
	// folders.
	cmd := exec.Command("bwrap", "--ro-bind", "/", "/", "--ro-bind", Folder(t), "/mnt", "--unshare-user", "--unshare-net",
		"--unshare-pid", "--proc", "/proc", "true")
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("this machine forbids namespaces: %v: %s", err, out)
	}
}

// sandbox returns the arguments of bubblewrap that precede the program. names maps host names to addresses.
func (c Container) sandbox(t testing.TB, names map[string]string) []string {
	t.Helper()
	args := []string{"--die-with-parent", "--unshare-user", "--uid", strconv.Itoa(c.UID), "--gid", strconv.Itoa(c.UID),
		"--unshare-pid", "--as-pid-1", "--cap-drop", "ALL", "--clearenv", "--chdir", "/", "--proc", "/proc", "--dev", "/dev"}
	entries, err := os.ReadDir(c.Root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(c.Root, e.Name())
		if to, err := os.Readlink(path); err == nil {
			args = append(args, "--symlink", to, "/"+e.Name())
		} else if e.Name() != "etc" {
			args = append(args, "--ro-bind", path, "/"+e.Name())
		}
	}
	hosts := "127.0.0.1 localhost\n::1 localhost\n"
	for name, address := range names {
		hosts += address + " " + name + "\n"
	}
	etc := filepath.Join(Folder(t), "hosts") // each container gets an /etc/hosts of its own
	if err := os.WriteFile(etc, []byte(hosts), 0o644); err != nil {
		t.Fatal(err)
	}
	args = append(args, "--ro-bind", filepath.Join(c.Root, "etc", "ssl"), "/etc/ssl", "--ro-bind", etc, "/etc/hosts")
	for path, from := range c.Mounts {
		args = append(args, "--ro-bind", from, path)
	}
	args = append(args, "--remount-ro", "/")
	for _, e := range c.Image.Env {
		name, value, _ := strings.Cut(e, "=")
		args = append(args, "--setenv", name, value)
	}
	for name, value := range c.Env {
		args = append(args, "--setenv", name, value)
	}
	return args
}

// Start starts the container, which is stopped when t ends. It does not wait until the program is ready.
func (c Container) Start(t testing.TB) *Running {
	t.Helper()
	names := map[string]string{}
	for _, at := range slices.Sorted(maps.Keys(c.Hosts)) {
		host, _, _ := strings.Cut(at, ":")
		if net.ParseIP(host) == nil && names[host] == "" {
			names[host] = fmt.Sprintf("127.0.0.%d", len(names)+2)
		}
	}
	r := &Running{Log: new(subprocess.Lines), Forwards: map[string]*Forward{}, args: c.sandbox(t, names)}
	if os.Getuid() == 0 { // the user differs outside of the sandbox too, so that file modes apply
		r.credential = &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.UID)}
	}
	info, infoEnd := pipe(t)
	block, blockEnd := pipe(t)
	cmd := r.command(append([]string{"--unshare-net", "--info-fd", "3", "--block-fd", "4"}, r.args...), c.Argv)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = r.Log, r.Log, []*os.File{infoEnd, block}
	var err error
	r.Process, err = subprocess.Start(cmd)
	infoEnd.Close()
	block.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r.program != nil {
			r.program.Kill()
		}
		r.Process.Stop(0)
		if t.Failed() {
			text := r.Log.String()
			t.Logf("log of %v:\n%s", c.Argv, text[max(0, len(text)-6000):])
		}
	})
	var child struct {
		PID int `json:"child-pid"`
	}
	if err := json.NewDecoder(info).Decode(&child); err != nil {
		t.Fatalf("bwrap: %v: %s", err, r.Log.String())
	}
	if r.program, err = os.FindProcess(child.PID); err != nil {
		t.Fatal(err)
	}
	for at, to := range c.Hosts {
		host, port, _ := strings.Cut(at, ":")
		if name, known := names[host]; known {
			host = name
		}
		f := &Forward{in: r, at: net.JoinHostPort(host, port), to: to}
		await.True(t, "loopback in the container is up", func() bool { return f.Up() == nil })
		t.Cleanup(f.Down)
		r.Forwards[at] = f
	}
	blockEnd.Write([]byte{1}) // lets the program start
	blockEnd.Close()
	return r
}

// pipe returns the ends of a pipe, which are closed when t ends.
func pipe(t testing.TB) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close(); write.Close() })
	return read, write
}

// command returns a command that runs a program by bubblewrap as the container's user.
func (r *Running) command(args, argv []string) *exec.Cmd {
	cmd := exec.Command("bwrap", append(append(append([]string{}, args...), "--"), argv...)...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: r.credential}
	return cmd
}

// Exec runs another program in the container and returns its exit status and output.
func (r *Running) Exec(t testing.TB, argv ...string) (status int, output string) {
	t.Helper()
	var out strings.Builder
	cmd := r.command(r.args, argv)
	cmd.Stdout, cmd.Stderr = &out, &out
	// Run the command on the thread that has entered the network, because bubblewrap ends with the thread that started
	// it.
	if err := inNetwork(r.program.Pid, cmd.Run); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			t.Fatal(err)
		}
		return exit.ExitCode(), out.String()
	}
	return 0, out.String()
}

// Signal sends a signal to the program in the container, not to bubblewrap.
func (r *Running) Signal(s os.Signal) error { return r.program.Signal(s) }

// Stop sends SIGTERM to the program and waits for its end, for no longer than grace. The error is the exit status,
// unless it is 0.
func (r *Running) Stop(grace time.Duration) error {
	r.Signal(syscall.SIGTERM)
	select {
	case <-r.Ended():
		return r.Process.Stop(0)
	case <-time.After(grace):
		r.program.Kill()
		return fmt.Errorf("still there %v after SIGTERM", grace)
	}
}

// Dial connects to an address in the container's network.
func (r *Running) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = inNetwork(r.program.Pid, func() error {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Client returns an HTTP client for servers in the container's network. It makes a connection for each request, as a
// kubelet's probes do.
func (r *Running) Client(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{DialContext: r.Dial, DisableKeepAlives: true}}
}

// Get requests a page of a server in the container's network. If there is no answer, status is 0.
func (r *Running) Get(url string) (status int, body string) {
	resp, err := r.Client(20 * time.Second).Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// Await waits for a line in the program's log that contains part.
func (r *Running) Await(t testing.TB, part string) {
	t.Helper()
	if err := r.Log.Await(part, nil, r.Ended(), time.Minute); err != nil {
		t.Fatal(err)
	}
}

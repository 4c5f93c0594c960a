package localserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// PostgresOptions are the options of Postgres.
type PostgresOptions struct {
	// Durable keeps fsync and full page writes on, as in production, for measurements. Without it, a commit survives
	// the end of all processes, but not a crash of the machine.
	Durable bool
	// InMemory keeps the files in memory if there is enough of it, otherwise below os.TempDir. On a disk, the files of
	// a new database cost three times as much.
	InMemory bool
	// Config has additional lines for postgresql.conf.
	Config []string
}

// socketName is the name that PostgreSQL gives its socket for port 5432.
const socketName = ".s.PGSQL.5432"

// Postgres starts an empty PostgreSQL on a unix socket. Its superuser is postgres, without a password. PostgreSQL
// refuses to run as root; if this process is root, the server runs as the user postgres or, if there is none, as
// nobody, who then owns its folder.
func Postgres(ctx context.Context, o PostgresOptions) (*Server, error) {
	credential, err := unprivileged()
	if err != nil {
		return nil, err
	}
	parent := ""
	if o.InMemory {
		parent = memory()
	}
	return start(ctx, plan{
		program: "postgres", parent: parent, socket: socketName, ready: postgresReady,
		credential: credential,
		// SIGTERM would make PostgreSQL wait until all clients have disconnected.
		quit:   syscall.SIGINT,
		files:  true,
		family: func(dir string) []int { return workingIn(filepath.Join(dir, "data")) },
		prepare: func(dir string, _ int) ([]string, error) {
			data := filepath.Join(dir, "data")
			if err := initdb(dir, data, credential); err != nil {
				return nil, err
			}
			// Use mmap, whose files are in the server's folder: other shared memory would remain for ever if the server
			// is killed.
			args := []string{"-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "dynamic_shared_memory_type=mmap"}
			if !o.Durable {
				args = append(args, "-c", "fsync=off", "-c", "full_page_writes=off")
			}
			for _, line := range o.Config {
				args = append(args, "-c", line)
			}
			return args, nil
		},
	})
}

// PostgresURL returns a DATABASE_URL for one database of a server that Postgres or PgBouncer has started.
func (s *Server) PostgresURL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/" + database}
	u.RawQuery = url.Values{"host": {s.dir}}.Encode()
	return u.String()
}

// memory returns a folder of a file system in memory. It returns "" if there is none, or if it does not have room for
// the servers of all test binaries that may run at once, which is 3 GiB for each core.
func memory() string {
	var s syscall.Statfs_t
	if err := syscall.Statfs("/dev/shm", &s); err != nil || uint64(s.Bavail)*uint64(s.Bsize) < uint64(runtime.GOMAXPROCS(0))*3<<30 {
		return ""
	}
	return "/dev/shm"
}

// unprivileged returns the user as which PostgreSQL runs if this process is root; nil if the present user can run it.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("localserver: user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("localserver: user %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("localserver: PostgreSQL refuses root, and there is neither a user postgres nor nobody")
}

// initdb makes the data folder, unless it exists because the server is being restarted.
func initdb(dir, data string, credential *syscall.Credential) error {
	if _, err := os.Stat(data); err == nil {
		return nil
	}
	path, err := Find("initdb")
	if err != nil {
		return err
	}
	if credential != nil {
		if err := os.Chown(dir, int(credential.Uid), int(credential.Gid)); err != nil {
			return err
		}
	}
	cmd := exec.Command(path, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
		"--locale=C", "--no-sync", "--no-instructions")
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

// workingIn returns the ids of the processes whose working directory is dir. These are the server and its backends,
// each of which has a process group of its own. Without /proc it returns none.
func workingIn(dir string) (pids []int) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil
	}
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is valid: no error
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && target == dir {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// postgresReady sends a start-up message and waits for ReadyForQuery. That the socket accepts a connection is not
// enough: it does so a little earlier than the server answers.
func postgresReady(ctx context.Context, network, addr string) error {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second)) // cannot fail on an open connection
	body := "\x00\x03\x00\x00user\x00postgres\x00database\x00postgres\x00\x00"
	hello := append(binary.BigEndian.AppendUint32(nil, uint32(4+len(body))), body...)
	if _, err := c.Write(hello); err != nil {
		return err
	}
	var head [5]byte
	for {
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return err
		}
		rest := make([]byte, min(binary.BigEndian.Uint32(head[1:])-4, 1<<16))
		if _, err := io.ReadFull(c, rest); err != nil {
			return err
		}
		switch head[0] {
		case 'Z':
			c.Write([]byte("X\x00\x00\x00\x04")) // ends the session cleanly, so that the server logs nothing
			return nil
		case 'E':
			return fmt.Errorf("answered %q", strings.ReplaceAll(string(rest), "\x00", " "))
		}
	}
}

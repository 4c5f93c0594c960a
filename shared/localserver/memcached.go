package localserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// MemcachedOptions are the options of Memcached.
type MemcachedOptions struct {
	// Socket makes the server listen on a unix socket instead of a port.
	Socket bool
	// Cert and Key are PEM files with which the server uses TLS. Debian's memcached supports TLS.
	Cert, Key string
	// ClientCA is a PEM file with the authority whose certificate clients must present.
	ClientCA string
	// Args are additional arguments.
	Args []string
}

// Memcached starts a memcached with 64 MiB of memory.
func Memcached(ctx context.Context, o MemcachedOptions) (*Server, error) {
	// Kill it, since it has nothing to save, and takes up to a second to notice SIGTERM.
	p := plan{program: "memcached", ready: o.ready, quit: syscall.SIGKILL}
	if o.Socket {
		p.socket = "memcached.sock"
	}
	p.prepare = func(dir string, port int) ([]string, error) {
		args := append([]string{"-m", "64", "-U", "0", "-t", "2"}, o.Args...)
		if os.Geteuid() == 0 {
			args = append(args, "-u", "root") // memcached refuses to run as root without this option
		}
		if o.Socket {
			return append(args, "-s", filepath.Join(dir, p.socket)), nil
		}
		args = append(args, "-l", "127.0.0.1", "-p", strconv.Itoa(port))
		if o.Cert != "" {
			args = append(args, "-Z", "-o", "ssl_chain_cert="+o.Cert+",ssl_key="+o.Key)
		}
		if o.ClientCA != "" {
			args = append(args, "-o", "ssl_ca_cert="+o.ClientCA+",ssl_verify_mode=2")
		}
		return args, nil
	}
	return start(ctx, p)
}

// ready requests the server's version. If the server requires a client's certificate, it is ready when the handshake is
// complete.
func (o MemcachedOptions) ready(ctx context.Context, network, addr string) error {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second)) // cannot fail on an open connection
	if o.Cert != "" {
		secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
		if err := secure.Handshake(); err != nil || o.ClientCA != "" {
			return err
		}
		c = secure
	}
	if _, err := c.Write([]byte("version\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(line, "VERSION ") {
		return fmt.Errorf("answered %q", line)
	}
	return nil
}

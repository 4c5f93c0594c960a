package localserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// RedisOptions are the options of Redis.
type RedisOptions struct {
	// Password is the password of the user default (requirepass).
	Password string
	// Users maps the names of additional users to their passwords. These users may do everything.
	Users map[string]string
	// Socket makes the server listen on a unix socket instead of a port.
	Socket bool
	// Cert and Key are PEM files with which the server uses TLS; it then accepts nothing else.
	Cert, Key string
	// ClientCA is a PEM file with the authority whose certificate clients must present.
	ClientCA string
	// Config has additional lines for redis.conf.
	Config []string

	tls TLSFiles // for a server of a cluster, or behind sentinels
}

// Redis starts a Redis that stores nothing on disk and has 4096 databases.
func Redis(ctx context.Context, o RedisOptions) (*Server, error) { return start(ctx, o.plan()) }

func (o RedisOptions) plan() plan {
	p := plan{program: "redis-server", ready: redisReady}
	if o.Cert != "" {
		p.ready = o.tlsReady
	}
	if o.Socket {
		p.socket = "redis.sock"
	}
	p.prepare = func(dir string, port int) ([]string, error) {
		// Put settings into a file: as arguments, passwords would be visible in the process list.
		conf := filepath.Join(dir, "redis.conf")
		o := o
		lines, err := o.tls.lines(dir)
		if err != nil {
			return nil, err
		}
		o.Config = append(slices.Clip(o.Config), lines...)
		return []string{conf}, os.WriteFile(conf, []byte(o.conf(dir, port)), 0o600)
	}
	return p
}

func (o RedisOptions) conf(dir string, port int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "bind 127.0.0.1\ndir %s\n", dir)
	if o.Cert == "" {
		fmt.Fprintf(&b, "port %d\n", port)
	} else {
		fmt.Fprintf(&b, "port 0\ntls-port %d\ntls-cert-file %s\ntls-key-file %s\n", port, o.Cert, o.Key)
		if o.ClientCA == "" {
			b.WriteString("tls-auth-clients no\n")
		} else {
			fmt.Fprintf(&b, "tls-auth-clients yes\ntls-ca-cert-file %s\n", o.ClientCA)
		}
	}
	b.WriteString("daemonize no\nsave \"\"\nappendonly no\ndatabases 4096\nenable-debug-command yes\n")
	if o.Socket {
		fmt.Fprintf(&b, "unixsocket %s\nunixsocketperm 700\n", filepath.Join(dir, "redis.sock"))
	}
	if o.Password != "" {
		fmt.Fprintf(&b, "requirepass %s\n", o.Password)
	}
	for user, password := range o.Users {
		fmt.Fprintf(&b, "user %s on >%s ~* &* +@all\n", user, password)
	}
	for _, line := range o.Config {
		b.WriteString(line + "\n")
	}
	return b.String()
}

// redisReady sends one PING. The server is ready if it answers, even with a request for a password.
func redisReady(ctx context.Context, network, addr string) error {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	return redisPing(c)
}

// tlsReady does what redisReady does, over TLS. If the server requires a client's certificate, it counts as ready when
// the handshake is complete.
func (o RedisOptions) tlsReady(ctx context.Context, network, addr string) error {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second)) // cannot fail on an open connection
	secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	if err := secure.Handshake(); err != nil || o.ClientCA != "" {
		return err
	}
	return redisPing(secure)
}

func redisPing(c net.Conn) error {
	c.SetDeadline(time.Now().Add(time.Second)) // cannot fail on an open connection
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	if strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH") {
		return nil
	}
	return fmt.Errorf("answered %q", line)
}

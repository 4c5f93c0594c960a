// Package httpx has what both daemons need in addition to net/http: listening, limits of connections, and shutdown.
//
// It knows no routes and does not know the daemons.
package httpx

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Listen listens on a TCP address that no other process uses, or on a unix socket. If the socket's file exists but
// nothing listens on it, it was left over from an unclean exit and is removed. If something listens on it, Listen
// fails, as it does for a port in use.
func Listen(ctx context.Context, network, address string) (net.Listener, error) {
	if network == "unix" {
		if err := removeStale(address); err != nil {
			return nil, err
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network, address)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err // without the address, which the caller's error names
		}
		if errors.Is(err, syscall.EADDRINUSE) && network != "unix" {
			err = fmt.Errorf("%w: another program has this port, set another one", err)
		}
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("listen on %s: it exists and is no socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return fmt.Errorf("listen on %s: another process listens there", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	return os.Remove(path)
}

// Timeouts bound how long one connection may take. A field that is zero sets no bound.
type Timeouts struct {
	// Header is how long a client may take to send the header of a request, Read the whole request.
	Header, Read time.Duration
	// Write is how long an answer may take, Idle how long a kept-alive connection may be idle.
	Write, Idle time.Duration
}

// NewServer returns an http.Server with the bounds that http.Server lacks by default. It logs its own messages, mostly
// about broken connections, at debug level.
func NewServer(h http.Handler, t Timeouts, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: t.Header,
		ReadTimeout:       t.Read,
		WriteTimeout:      t.Write,
		IdleTimeout:       t.Idle,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// Closing returns a handler that calls h. While closing returns true, each answer ends its connection. A proxy that
// keeps connections then sends its next request elsewhere, not to a listener that has just closed.
func Closing(h http.Handler, closing func() bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if closing() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// Stop stops srv: it refuses new connections at once, lets running requests finish until ctx ends, and then cuts them
// off.
func Stop(ctx context.Context, srv *http.Server) error {
	if err := srv.Shutdown(ctx); err != nil {
		return errors.Join(err, srv.Close())
	}
	return nil
}

// ServeUntil serves on l until ctx ends. Then it calls Stop, which lets running requests finish for no longer than
// patience.
func ServeUntil(ctx context.Context, srv *http.Server, l net.Listener, patience time.Duration) error {
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	err := Stop(within, srv)
	<-served
	return err
}

// IsLoopbackHost reports whether a Host header names this machine. If an attacker makes a name of theirs resolve to
// 127.0.0.1, the Host header of a browser that is lured to it has that name instead.
func IsLoopbackHost(host string) bool {
	if name, port, err := net.SplitHostPort(host); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return false
		}
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	host = strings.ToLower(host)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

package httpx

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
	"unicode"
)

// ErrNotLocal is returned by Health for an address that is not on this host.
var ErrNotLocal = errors.New("not a page of this host")

// HealthURL returns the URL of a page of a daemon that listens on host and port. If host is unspecified, such as
// 0.0.0.0, the URL has localhost.
func HealthURL(host, port, page string) string {
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port) + page
}

// Health sends one GET request and returns nil if the answer's status is 2xx. It connects only to loopback addresses
// and to own, the host on which the daemon listens: the command that calls it may be run by anyone in a container, and
// must not reach into the container's network. It does not use an http.Client, which would obey proxy variables and
// follow redirects.
func Health(ctx context.Context, address, own string) error {
	status, body, err := ask(ctx, address, own)
	if err == nil && status/100 != 2 {
		return fmt.Errorf("%s: %d %s: %s", address, status, http.StatusText(status), body)
	}
	return err
}

// Answers does what Health does, but accepts an answer of any status.
func Answers(ctx context.Context, address, own string) error {
	_, _, err := ask(ctx, address, own)
	return err
}

func ask(ctx context.Context, address, own string) (status int, body string, err error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" || u.User != nil || u.Opaque != "" {
		return 0, "", fmt.Errorf("%q: %w: want http://HOST:PORT/PATH", address, ErrNotLocal)
	}
	hosts, err := local(u.Hostname(), own)
	if err != nil {
		return 0, "", err
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	conn, err := dial(ctx, hosts, port)
	if err != nil {
		return 0, "", fmt.Errorf("%s: %w", address, err)
	}
	defer conn.Close()
	status, body, err = get(ctx, conn, u)
	if err != nil && ctx.Err() != nil {
		return 0, "", fmt.Errorf("%s: no answer in time", address)
	} else if err != nil {
		return 0, "", fmt.Errorf("%s: %w", address, err)
	}
	return status, body, nil
}

// local returns the addresses to try for a host, in order. It does not look up localhost.
func local(host, own string) ([]string, error) {
	if strings.EqualFold(host, "localhost") {
		return []string{"127.0.0.1", "::1"}, nil
	}
	ip, err := netip.ParseAddr(host)
	if err == nil && ip.Unmap().IsLoopback() || host != "" && host == own && !ip.IsUnspecified() {
		return []string{host}, nil
	}
	return nil, fmt.Errorf("host %q: %w: want localhost, a loopback address or the one that the daemon listens on", host,
		ErrNotLocal)
}

// dial connects to the first address of hosts that accepts the connection. If none does, it returns the first address's
// error.
func dial(ctx context.Context, hosts []string, port string) (net.Conn, error) {
	var failed []error
	for _, host := range hosts {
		addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			failed = append(failed, err)
		}
		for _, ip := range addresses {
			conn, err := dialHere(ctx, ip.Unmap(), port)
			if err == nil {
				return conn, nil
			}
			failed = append(failed, err)
		}
	}
	return nil, failed[0]
}

// dialHere binds the socket to the address ip that it connects to, so that it reaches only this host, whatever the
// daemon's HOST is set to.
func dialHere(ctx context.Context, ip netip.Addr, port string) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))}
	return dialer.DialContext(ctx, "tcp", net.JoinHostPort(ip.String(), port))
}

// maxHealthBody is how many bytes of an answer are shown.
const maxHealthBody = 200

// get sends the request and returns the status and the beginning of the body, on one line.
func get(ctx context.Context, conn net.Conn, u *url.URL) (status int, body string, err error) {
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	r := &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Close: true, Header: http.Header{}}
	if err := r.Write(conn); err != nil {
		return 0, "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, 64<<10)), r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	// An error does not matter, since the status says enough.
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxHealthBody))
	oneLine := strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, string(text))
	return resp.StatusCode, strings.TrimSpace(oneLine), nil
}

package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"gatehouse/shared/httpx"
	"gatehouse/shared/logging"
)

// state describes the daemon's state in a few words, which the service manager (systemd) shows.
func (d *daemon) state() string {
	rules, store := "no rules yet", "up"
	if r := d.service.Rules(); r != nil {
		rules = thousands(r.Count()) + " rules"
	}
	if d.store != nil && !d.store() {
		store = "unavailable"
	}
	return fmt.Sprintf("serving, %s, store %s", rules, store)
}

// thousands returns n in decimal with a comma before each group of three digits.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// reloaded notifies the service manager that a reload has ended, if the service manager was notified of its beginning.
// refused is the error of a reload that failed.
func (d *daemon) reloaded(refused error) {
	if !d.again.CompareAndSwap(true, false) {
		return
	}
	if refused != nil {
		d.manager.Ready("serving, rules not reloaded: " + logging.HideCredentials(refused.Error()))
		return
	}
	d.manager.Ready(d.state())
}

// alive returns an error if the daemon does not answer on its own listeners. It accepts any status over HTTP. Over gRPC
// it tries only if no client certificate is required.
func (d *daemon) alive(ctx context.Context, l *listeners) error {
	host, port, err := net.SplitHostPort(addrOf(l.httpAt))
	if err != nil {
		return err
	}
	if err := httpx.Answers(ctx, httpx.HealthURL(host, port, "/healthcheck"), host); err != nil {
		return err
	}
	if d.tls != nil && d.config.TLS.ClientCA != "" {
		return nil
	}
	return d.aliveGRPC(ctx, l.grpcAt.Addr())
}

// aliveGRPC requests a health check over gRPC, and accepts any status.
func (d *daemon) aliveGRPC(ctx context.Context, at net.Addr) error {
	secure := insecure.NewCredentials()
	if d.tls != nil {
		// This process is the server, so its certificate need not be verified.
		secure = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	conn, err := grpc.NewClient("passthrough:///self", grpc.WithTransportCredentials(secure),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, at.Network(), at.String())
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

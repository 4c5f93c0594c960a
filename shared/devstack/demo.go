package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"

	"gatehouse/shared/httpx"
)

//go:embed demo
var demoFiles embed.FS

// demo is an example of an application that uses both daemons: a page on which users sign in, and a server that calls
// auth and ratelimit before it accepts an order, as an Envoy would.
type demo struct {
	addr      string // address at which the demo listens, host:port
	auth      string // URL of the auth daemon
	ratelimit string // URL of the rate limit daemon
	page      demoPage
	server    *http.Server
	client    http.Client
}

// demoPage is the data that the demo's page gets from its server.
type demoPage struct {
	API     string `json:"api"`
	Mailbox string `json:"mailbox"`
	Console string `json:"console,omitempty"`
	Rules   string `json:"rules"`
}

// start serves at d.addr and, if the machine has it, at [::1], since browsers may resolve localhost to either.
func (d *demo) start() error {
	_, port, _ := net.SplitHostPort(d.addr) // loopback has made the address, so it is valid
	l, err := net.Listen("tcp", d.addr)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	d.client.Timeout = 10 * time.Second
	d.server = &http.Server{Handler: d.handler(), ReadTimeout: 10 * time.Second}
	go d.server.Serve(l)
	if l, err := net.Listen("tcp", net.JoinHostPort("::1", port)); err == nil {
		go d.server.Serve(l)
	}
	return nil
}

func (d *demo) stop() {
	if d.server != nil {
		d.server.Close()
	}
}

func (d *demo) handler() http.Handler {
	files, err := fs.Sub(demoFiles, "demo")
	if err != nil {
		panic(err) // not reached: the folder is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /config.json", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, d.page) })
	mux.HandleFunc("POST /shop/order", d.postOrder)
	csp := "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self' " + d.auth +
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", csp)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		if !httpx.IsLoopbackHost(r.Host) { // an attacker may have made the name resolve to 127.0.0.1
			http.Error(w, "the demo answers under loopback names only", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) // an error means that the browser has disconnected
}

// problem is an error as JSON, in the form of the auth daemon's errors.
type problem struct {
	Code string `json:"error_code"`
	Msg  string `json:"msg"`
}

// postOrder accepts an order of the user whose token the request has, unless the user's limit of orders is reached.
func (d *demo) postOrder(w http.ResponseWriter, r *http.Request) {
	status, body, err := d.fetch(r.Context(), "GET", d.auth+"/user", r.Header.Get("Authorization"), nil)
	if err == nil && status != http.StatusOK {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write(body) // pass on auth's own answer
		return
	}
	var user struct{ ID string }
	if err == nil {
		err = json.Unmarshal(body, &user)
	}
	if err != nil {
		answer(w, http.StatusBadGateway, problem{"auth_unavailable", err.Error()})
		return
	}
	limited, remaining, err := d.count(r.Context(), user.ID)
	switch {
	case err != nil:
		answer(w, http.StatusBadGateway, problem{"ratelimit_unavailable", err.Error()})
	case limited:
		answer(w, http.StatusTooManyRequests, problem{"rate_limited", "No more orders in this minute. The rules are in " +
			d.page.Rules + "."})
	default:
		answer(w, http.StatusOK, map[string]any{"user": user.ID, "remaining": remaining})
	}
}

// count sends ratelimit one hit of a user in the domain shop. limited reports whether the user's limit is reached.
func (d *demo) count(ctx context.Context, user string) (limited bool, remaining uint32, err error) {
	request, err := json.Marshal(map[string]any{"domain": "shop", "descriptors": []any{
		map[string]any{"entries": []any{map[string]string{"key": "user", "value": user}}},
	}})
	if err != nil {
		return false, 0, err
	}
	status, body, err := d.fetch(ctx, "POST", d.ratelimit+"/json", "", request)
	var verdict struct {
		Statuses []struct{ LimitRemaining uint32 }
	}
	if err == nil && status != http.StatusOK && status != http.StatusTooManyRequests {
		err = fmt.Errorf("ratelimit answers %d: %s", status, body)
	}
	if err == nil {
		err = json.Unmarshal(body, &verdict)
	}
	if err == nil && len(verdict.Statuses) != 1 {
		err = errors.New("ratelimit answers " + string(body))
	}
	if err != nil {
		return false, 0, err
	}
	return status == http.StatusTooManyRequests, verdict.Statuses[0].LimitRemaining, nil
}

func (d *demo) fetch(ctx context.Context, method, url, authorization string, body []byte) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, bytes.TrimSpace(text), err
}

// site returns the URL of the demo for browsers.
func (d *demo) site() string { return "http://" + strings.Replace(d.addr, "127.0.0.1", "localhost", 1) }

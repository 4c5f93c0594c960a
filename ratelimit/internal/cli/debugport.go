package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"gatehouse/ratelimit/internal/server"
	"gatehouse/shared/settings"
)

// defaultDebugURL is the address of the debug port of a daemon on this host.
const defaultDebugURL = "http://127.0.0.1:6070"

// debugPort is an HTTP client for the debug port of a daemon, which sends the token that guarded pages need.
type debugPort struct {
	base  *url.URL
	token string
	http  *http.Client
}

// openDebugPort returns a client for the debug port at base. It reads the token from DEBUG_TOKEN or from the file
// DEBUG_TOKEN_FILE.
func openDebugPort(base string, environ []string) (*debugPort, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("-debug_url %q: want http://host:port", base)
	}
	var s struct{ Debug server.DebugSettings }
	if err := settings.Load(&s, environ, settings.Options{}).Err(); err != nil {
		return nil, err
	}
	return &debugPort{u, s.Debug.Token, &http.Client{
		// Use no proxy: it would see the token, and the daemon would not take the request as coming from this host.
		Transport:     &http.Transport{ResponseHeaderTimeout: 30 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// refusal is the error for an answer whose status is not 200.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string { return fmt.Sprintf("%d %s", r.status, r.message) }

// ask sends a request for a page; empty parameters in q are left out. The caller closes the body of the answer. The
// error is a *refusal if the status is not 200.
func (d *debugPort) ask(ctx context.Context, method, page string, q url.Values) (*http.Response, error) {
	maps.DeleteFunc(q, func(_ string, values []string) bool { return values[0] == "" })
	r, err := http.NewRequestWithContext(ctx, method, d.base.JoinPath(page).String()+"?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if d.token != "" {
		r.Header.Set("Authorization", "Bearer "+d.token)
	}
	resp, err := d.http.Do(r)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // err itself contains the URL with its parameters
		}
		return nil, fmt.Errorf("%s: %w", d.base, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var said struct{ Message string }
	if json.Unmarshal(body, &said) != nil || said.Message == "" {
		said.Message = strings.TrimSpace(string(body))
	}
	return nil, &refusal{resp.StatusCode, said.Message}
}

// failed prints an error that ask returned, and returns the exit status.
func failed(command string, err error, stderr io.Writer) int {
	fmt.Fprintf(stderr, "ratelimit %s: %v\n", command, err)
	if r, ok := errors.AsType[*refusal](err); ok && r.status == http.StatusBadRequest {
		return exitUsage
	}
	return exitFailed
}

package hook

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"gatehouse/auth/internal/outbound"
)

// Target is what a hook calls: a URL or a PostgreSQL function. secrets are the keys that sign its HTTP requests.
type Target struct {
	url              string // "" for a function
	schema, function string
	secrets          [][]byte
}

// plainHTTPHosts are the hosts for which a hook's URL may be http instead of https.
var plainHTTPHosts = []string{"localhost", "127.0.0.1", "::1", "host.docker.internal"}

var name = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`) })

// ParseURI parses the URI of a hook: https://…, http://… for a host of plainHTTPHosts, or
// pg-functions://any/schema/function. The error does not quote the text, which may contain a password.
func ParseURI(text string) (Target, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Target{}, errors.New("is no URL")
	}
	switch u.Scheme {
	case "https":
	case "http":
		if !slices.Contains(plainHTTPHosts, strings.ToLower(u.Hostname())) {
			return Target{}, fmt.Errorf("http:// is for %s; elsewhere https://", strings.Join(plainHTTPHosts, ", "))
		}
	case "pg-functions":
		return parseFunction(u)
	default:
		return Target{}, errors.New("must begin with https://, http:// or pg-functions://")
	}
	if u.Hostname() == "" {
		return Target{}, errors.New("names no host")
	}
	u.Fragment = ""
	return Target{url: u.String()}, nil
}

func parseFunction(u *url.URL) (Target, error) {
	parts := strings.Split(u.Path, "/")
	if u.Host == "" || len(parts) != 3 || parts[0] != "" || u.RawQuery != "" || u.Fragment != "" {
		return Target{}, errors.New("must be pg-functions://postgres/schema/function")
	}
	for i, what := range []string{"schema", "function"} {
		if !name().MatchString(parts[i+1]) {
			return Target{},
				fmt.Errorf(
					"the %s's name must be a letter or underscore, then up to 62 letters, digits and underscores", what)
		}
	}
	return Target{schema: parts[1], function: parts[2]}, nil
}

// Function reports whether the target is a PostgreSQL function, which needs no secrets.
func (t Target) Function() bool { return t.function != "" }

var (
	errSecret     = errors.New("wants v1,whsec_ and 32 to 88 characters of base64; several are separated by |")
	errAsymmetric = errors.New("an asymmetric secret (v1a,…) cannot sign here: use v1,whsec_…")
)

// WithSecrets returns t with the secrets that sign its calls, which text lists separated by |. The error does not quote
// them.
func (t Target) WithSecrets(text string) (Target, error) {
	t.secrets = nil
	for one := range strings.SplitSeq(text, "|") {
		one = strings.TrimSpace(one)
		if strings.HasPrefix(one, "v1a,") {
			return t, errAsymmetric
		}
		coded, ok := strings.CutPrefix(one, "v1,whsec_")
		if !ok || len(coded) < 32 || len(coded) > 88 {
			return t, errSecret
		}
		key, err := base64.StdEncoding.DecodeString(coded)
		if err != nil {
			if key, err = base64.RawStdEncoding.DecodeString(coded); err != nil {
				return t, errSecret
			}
		}
		t.secrets = append(t.secrets, key)
	}
	return t, nil
}

// Points returns the points that have a hook, in a fixed order.
func (s *Set) Points() (on []Point) {
	for _, p := range []Point{SendSMS, SendEmail, CustomAccessToken, FactorAttempt, PasswordAttempt, BeforeUserCreated,
		AfterUserCreated} {
		if s.On(p) {
			on = append(on, p)
		}
	}
	return on
}

// Where describes the target of a point for people: a function's name, or a URL without user and query, which may
// contain a password.
func (s *Set) Where(p Point) string {
	t := s.targets[p]
	if t.Function() {
		return "function " + t.schema + "." + t.function
	}
	u, err := url.Parse(t.url)
	if err != nil {
		return "(no URL)"
	}
	return u.Scheme + "://" + u.Host + u.Path
}

// Check tests whether the hook of a point could be called, without calling it. An HTTP endpoint gets an OPTIONS
// request, and any answer will do. For a PostgreSQL function, Check calls the function in the parameter find, which
// returns an error if the PostgreSQL function cannot be called.
func (s *Set) Check(ctx context.Context, p Point, find func(ctx context.Context, schema, function string) error) error {
	t := s.targets[p]
	if t.Function() {
		return find(ctx, t.schema, t.function)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodOptions, t.url, nil)
	if err != nil {
		return errors.New("the request cannot be made")
	}
	resp, err := s.clients.Configured.Do(r)
	if err != nil {
		return outbound.Quiet(r, err)
	}
	resp.Body.Close()
	return nil
}

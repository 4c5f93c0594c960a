package hook

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"gatehouse/auth/internal/outbound"
)

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

// Where returns the receiver at a point, for people: a function, or a URL without user and query, which may hold a
// password.
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

// Check finds out whether the hook of a point could be called, without calling it. An endpoint gets an OPTIONS request,
// which changes nothing; any answer will do. find looks for a function.
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

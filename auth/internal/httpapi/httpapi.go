// Package httpapi is the HTTP face of the auth daemon: one route table, the guards before a handler,
// decoding, the JSON of answers, and the one place where failures are written.
//
// It decides nothing about accounts: that is package account, whose refusals it turns into statuses. It
// runs no query and keeps no state but the per-address limiters, which are this process's own.
package httpapi

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/cors"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/captcha"
	"gatehouse/auth/internal/redirect"
	"gatehouse/auth/internal/token"
)

// Options are what the handlers work with.
type Options struct {
	Accounts *account.Accounts
	// Keys are published at /.well-known/jwks.json.
	Keys *token.Live
	// Refresh distinguishes this daemon's refresh tokens from others, which alone count against an address.
	Refresh *token.RefreshCodec
	// Checks are what /readyz tests. Their errors go to the log; the answer has only names.
	Checks []Check
	// Version is what /health shows.
	Version string
	// Log gets one line for each request. nil: nowhere.
	Log *slog.Logger
	// Observer makes spans and metrics of requests. nil: off.
	Observer *Observer
	// Now is the clock of the limiters; nil: time.Now.
	Now func() time.Time
}

// Settings are what may change while the daemon runs. A request uses those it began with.
type Settings struct {
	SiteURL     string         // where a link leads when nothing else is allowed
	Redirects   *redirect.List // what else is
	ExternalURL string         // API_EXTERNAL_URL, without a slash at its end
	// ExternalHosts are the values of X-Forwarded-Host that links may be made of (MAILER_EXTERNAL_HOSTS).
	ExternalHosts []string
	Audience      string // JWT_AUD
	// RequestIDHeader is whence a request's id is inherited and where it is answered; "" is
	// X-Request-Id, and nothing is inherited.
	RequestIDHeader string
	// CORSHeaders are added to those that browsers may send (CORS_ALLOWED_HEADERS).
	CORSHeaders []string
	// MaxDuration is how long a request may take (API_MAX_REQUEST_DURATION); 0: any time.
	MaxDuration time.Duration

	// ForwardedFor believes the header Auth-Forwarded-For (SECURITY_FORWARDED_FOR_ENABLED).
	ForwardedFor bool
	// TrustedProxies are the peers whose X-Forwarded-For counts (AUTH_TRUSTED_PROXIES).
	TrustedProxies []netip.Prefix
	// LimitHeader names the header whose first value the per-address limiters count by
	// (RATE_LIMIT_HEADER); LimitByPeer counts by the connection's address where no header says better.
	LimitHeader string
	LimitByPeer bool
	Limits      Limits
	// Captcha verifies the captcha of each request that signs up or in, or has something sent to an address
	// (SECURITY_CAPTCHA_*); nil: none is required.
	Captcha *captcha.Verifier

	Shown Shown
}

// Limits are requests per address: OTP and Verify and Token in 5 minutes, Anonymous in an hour, Factors
// (challenges and answers, each) in a minute. 0 refuses all.
type Limits struct {
	OTP, Verify, Token, Anonymous, Factors int
}

// DefaultLimits are those of docs/settings.md#limits.
var DefaultLimits = Limits{OTP: 30, Verify: 30, Token: 150, Anonymous: 30, Factors: 15}

// Shown is what GET /settings publishes.
type Shown struct {
	DisableSignup           bool
	Email, Phone, Anonymous bool
	External                []string // the providers that are on
	MailerAutoconfirm       bool
	PhoneAutoconfirm        bool
	SMSProvider             string
}

// liveSettings is Settings with what is made of them once.
type liveSettings struct {
	Settings
	handler  http.Handler // with CORS around it
	settings []byte       // the body of GET /settings
	idHeader string       // in canonical form
}

// Server answers the daemon's HTTP requests.
type Server struct {
	accounts *account.Accounts
	keys     *token.Live
	refresh  *token.RefreshCodec
	log      *slog.Logger
	observer *Observer // nil: off
	now      func() time.Time
	mux      *http.ServeMux
	health   []byte
	ready    readiness
	limiters [limiterCount]limiter
	refused  refusedTargets
	missing  atomic.Int64 // when it was last said that LimitHeader is missing
	live     atomic.Pointer[liveSettings]
}

// New makes the handler of the API's port.
func New(o Options, s Settings) (*Server, error) {
	if o.Accounts == nil || o.Keys == nil || o.Refresh == nil {
		return nil, errors.New("httpapi: needs Accounts, Keys and Refresh")
	}
	srv := &Server{accounts: o.Accounts, keys: o.Keys, refresh: o.Refresh, log: o.Log, observer: o.Observer, now: o.Now}
	if srv.log == nil {
		srv.log = slog.New(slog.DiscardHandler)
	}
	if srv.now == nil {
		srv.now = time.Now
	}
	srv.health = healthBody(cmp.Or(o.Version, "0.0.0"))
	srv.ready.checks = o.Checks
	for i := range srv.limiters {
		srv.limiters[i].init()
	}
	srv.mux = srv.routes()
	if err := s.Check(); err != nil {
		return nil, err
	}
	srv.Apply(s)
	return srv, nil
}

// Check reports what is missing in settings.
func (set *Settings) Check() error {
	if set.Redirects == nil || set.SiteURL == "" || set.ExternalURL == "" {
		return errors.New("httpapi: needs SiteURL, ExternalURL and Redirects")
	}
	return nil
}

// Apply puts other settings, which Check has passed, in force for the requests that come from now on.
func (s *Server) Apply(set Settings) {
	l := &liveSettings{Settings: set, settings: settingsBody(set.Shown)}
	l.idHeader = http.CanonicalHeaderKey(cmp.Or(set.RequestIDHeader, "X-Request-Id"))
	l.handler = corsRules(set.CORSHeaders).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serve(l, w, r)
	}))
	s.live.Store(l)
}

var noSniff = []string{"nosniff"}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["X-Content-Type-Options"] = noSniff
	if r.Method == http.MethodOptions {
		r = canonicalPreflight(r)
	}
	s.live.Load().handler.ServeHTTP(w, r)
}

// canonicalPreflight has the names of the requested headers in lower case and sorted. Browsers send them so (Fetch
// standard, "CORS-unsafe request-header names") and package cors takes nothing else; an operator who tries the
// settings by hand should get the answer that a browser would.
func canonicalPreflight(r *http.Request) *http.Request {
	const asked = "Access-Control-Request-Headers"
	given := r.Header[asked]
	if len(given) == 0 {
		return r
	}
	names := strings.FieldsFunc(strings.ToLower(strings.Join(given, ",")),
		func(c rune) bool { return c == ',' || c == ' ' || c == '\t' })
	slices.Sort(names)
	r = r.Clone(r.Context()) // the request is the caller's
	r.Header[asked] = []string{strings.Join(slices.Compact(names), ",")}
	return r
}

// corsRules let any origin call, without credentials: tokens travel in a header, never in a cookie.
func corsRules(more []string) *cors.Cors {
	return cors.New(cors.Options{
		AllowedOrigins: []string{"*"},
		AllowedMethods: []string{"GET", "POST", "PUT", "PATCH", "DELETE"},
		AllowedHeaders: append([]string{"Accept", "Authorization", "Content-Type", "X-Client-IP", "X-Client-Info",
			"X-JWT-AUD", "x-use-cookie", "X-Supabase-Api-Version", "apikey"}, more...),
		ExposedHeaders:       []string{"X-Total-Count", "Link", "X-Supabase-Api-Version"},
		OptionsSuccessStatus: http.StatusNoContent,
		// Each call has an Authorization header, and so a preflight; without this a browser repeats it after 5 s.
		MaxAge: 600,
	})
}

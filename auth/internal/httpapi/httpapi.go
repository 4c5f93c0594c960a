// Package httpapi is the HTTP API of the auth daemon: the table of routes, the guards before the handlers, decoding of
// requests, encoding of answers, and the one function that writes failures.
//
// Package account makes the decisions about accounts; httpapi converts its refusals to HTTP statuses. httpapi runs no
// query, and its only state are rate limiters by client address, each for this process alone.
package httpapi

import (
	"cmp"
	"context"
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
	"gatehouse/auth/internal/account/admin"
	"gatehouse/auth/internal/account/factor"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/oauth"
	"gatehouse/auth/internal/account/passkey"
	"gatehouse/auth/internal/captcha"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/pages"
	"gatehouse/auth/internal/redirect"
)

// Options are what New needs.
type Options struct {
	Core *flow.Core // what all flows share
	// Checks are the conditions that /readyz tests. Their errors are logged; the answer has only their names.
	Checks []Check
	// Version is the version that /health shows.
	Version string
	// Log gets one line for each request; nil: the lines are discarded.
	Log *slog.Logger
	// Observer records spans and metrics of requests; nil: off.
	Observer *Observer
	// Now is the clock of the rate limiters; nil: time.Now.
	Now func() time.Time
}

// Settings are the settings that may change while the daemon runs. A request keeps the settings that it began with.
// Fields without an env tag are computed from other settings.
type Settings struct {
	Redirects *redirect.List // where links may lead in addition to the site
	// Time limit of one request; then the answer is 504. 0: none.
	MaxDuration time.Duration `env:"AUTH_API_MAX_REQUEST_DURATION" envDefault:"10s" min:"0s" table:"API"`
	// Header whose value becomes the request's ID, which the answer returns in the same header; unset: each request
	// gets a new ID, in X-Request-Id.
	RequestIDHeader string `env:"AUTH_REQUEST_ID_HEADER" table:"API"`
	// Headers that browsers may send in addition to the usual ones.
	CORSHeaders []string `env:"AUTH_CORS_ALLOWED_HEADERS" table:"API"`
	// Values of X-Forwarded-Host that links in mails may begin with instead of API_EXTERNAL_URL.
	ExternalHosts []string `env:"AUTH_MAILER_EXTERNAL_HOSTS" table:"Mailer"`
	// The first value of Auth-Forwarded-For is the client's address. Use it only behind a proxy that sets the header.
	ForwardedFor bool `env:"AUTH_SECURITY_FORWARDED_FOR_ENABLED" envDefault:"false" table:"Security"`
	// Header, set by a trusted proxy, whose first value identifies the client for the limits below. Unset: there are no
	// limits by client unless `AUTH_TRUSTED_PROXIES` or `AUTH_RATE_LIMIT_BY_PEER` gives an address.
	LimitHeader string `env:"AUTH_RATE_LIMIT_HEADER" table:"Limits"`
	// If no header identifies the client, the address of the connection does.
	LimitByPeer bool   `env:"AUTH_RATE_LIMIT_BY_PEER" envDefault:"false" table:"Limits"`
	Limits      Limits `table:"Limits"`
	// TrustedProxies are the proxies whose X-Forwarded-For is trusted (AUTH_TRUSTED_PROXIES).
	TrustedProxies []netip.Prefix
	// Captcha verifies the captcha of each request that signs up or in, or sends something to an address
	// (SECURITY_CAPTCHA_*); nil: no captcha is required.
	Captcha *captcha.Verifier

	// GET /verify shows a page with a button and does not use up the link, against mail filters that open links.
	ConfirmPage bool `env:"AUTH_MAILER_CONFIRM_PAGE" envDefault:"false" table:"Mailer"`
	// Path below which the API answers too, such as /auth/v1 for createClient of supabase-js without a proxy. A proxy
	// that guards paths must guard both spellings.
	Prefix string `env:"AUTH_API_PREFIX" table:"API"`
	// Look is the look of pages; nil stands for a site without a name, in English.
	Look *pages.Look
	// External are the names of the external providers that are on, SMSProvider is the SMS gateway. GET /settings
	// publishes both, in addition to some settings of the flows.
	External    []string
	SMSProvider string
}

// Limits are the rate limits by client. 0 refuses all requests.
type Limits struct {
	// Requests of one client to each of /verify, /authorize and /callback in 5 minutes.
	Verify int `env:"AUTH_RATE_LIMIT_VERIFY" envDefault:"30" min:"0"`
	// Requests of one client to /token in 5 minutes; refresh tokens that this daemon has issued are not counted.
	Token int `env:"AUTH_RATE_LIMIT_TOKEN_REFRESH" envDefault:"150" min:"0"`
	// Requests of one client to each of /signup, /otp, /magiclink, /recover, /resend, PUT /user, /reauthenticate and
	// POST /factors in 5 minutes.
	OTP int `env:"AUTH_RATE_LIMIT_OTP" envDefault:"30" min:"0"`
	// Anonymous sign-ins of one client in an hour.
	Anonymous int `env:"AUTH_RATE_LIMIT_ANONYMOUS_USERS" envDefault:"30" min:"0"`
	// Requests of one client in 5 minutes for each of: options of a sign-in by passkey, answers to them, and
	// registrations, with both steps together.
	Passkeys int `env:"AUTH_RATE_LIMIT_PASSKEY" envDefault:"30" min:"0"`
	// Challenges of one client in a minute, up to 30 at once; answers have a separate limit of the same size.
	Factors int `env:"AUTH_MFA_RATE_LIMIT_CHALLENGE_AND_VERIFY" envDefault:"15" min:"0" table:"Factors"`
}

// liveSettings are the Settings, the settings of the flows, and values that are computed once from both.
type liveSettings struct {
	Settings
	flows     *flow.Settings
	handler   http.Handler // answers requests, with CORS
	settings  []byte       // body of GET /settings
	idHeader  string       // name of RequestIDHeader in canonical form
	discovery atomic.Pointer[discovery]
}

// Server answers the daemon's HTTP requests.
type Server struct {
	core     *flow.Core
	accounts *account.Accounts
	oauth    *oauth.Identities
	factors  *factor.Factors
	passkeys *passkey.Passkeys
	users    *admin.Users
	log      *slog.Logger
	observer *Observer // nil: off
	now      func() time.Time
	mux      *http.ServeMux
	facts    map[string]facts // facts about routes, by their patterns
	health   []byte
	ready    readiness
	limiters [limiterCount]limiter
	refused  onceAMinute // limits the log of refused values of redirect_to
	gone     hangUps
	// refusedAdmins holds the subjects for whom a refusal at a route for administrators was recorded in this minute.
	refusedAdmins onceAMinute
	missing       onceAMinute // limits the log of requests without the LimitHeader
	live          atomic.Pointer[liveSettings]
}

// New makes the handler of the API's listener.
func New(o Options, s Settings) (*Server, error) {
	srv := &Server{core: o.Core, accounts: account.New(o.Core), oauth: oauth.New(o.Core),
		factors: factor.New(o.Core), passkeys: passkey.New(o.Core), users: admin.New(o.Core),
		log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), observer: o.Observer, now: o.Now,
		refused: onceAMinute{most: refusedLines}, refusedAdmins: onceAMinute{most: maxRefusedAdmins},
		missing: onceAMinute{most: 1}}
	if srv.now == nil {
		srv.now = time.Now
	}
	srv.health = healthBody(cmp.Or(o.Version, "0.0.0"))
	srv.ready.checks = o.Checks
	for i := range srv.limiters {
		srv.limiters[i].init()
	}
	srv.addRoutes()
	if err := s.Check(o.Core.Live()); err != nil {
		return nil, err
	}
	srv.Apply(s)
	return srv, nil
}

// Check returns an error if a required field of the settings is missing.
func (set *Settings) Check(flows *flow.Settings) error {
	if set.Redirects == nil || flows.SiteURL == "" || flows.BaseURL == "" {
		return errors.New("httpapi: needs SiteURL, BaseURL and Redirects")
	}
	return nil
}

// Apply replaces the settings for requests that arrive from now on. Check must have accepted them. Apply also takes
// over the current settings of the flows.
func (s *Server) Apply(set Settings) {
	l := &liveSettings{Settings: set, flows: s.core.Live()}
	l.settings = l.settingsBody()
	if l.Look == nil {
		l.Look = pages.NewLook(mail.Site{Color: "#1d4ed8"}, nil)
	}
	l.idHeader = http.CanonicalHeaderKey(cmp.Or(set.RequestIDHeader, "X-Request-Id"))
	l.handler = corsRules(set.CORSHeaders).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serve(l, w, r)
	}))
	s.live.Store(l)
}

// canonicalPreflight returns the request of a preflight with the names of the requested headers in lower case and
// sorted. Browsers send them in this form (Fetch standard, "CORS-unsafe request-header names"), and package cors
// accepts no other. So an operator who tests the settings by hand gets the same answer as a browser.
func canonicalPreflight(r *http.Request) *http.Request {
	const asked = "Access-Control-Request-Headers"
	given := r.Header[asked]
	if len(given) == 0 {
		return r
	}
	names := strings.FieldsFunc(strings.ToLower(strings.Join(given, ",")),
		func(c rune) bool { return c == ',' || c == ' ' || c == '\t' })
	slices.Sort(names)
	r = r.Clone(r.Context()) // a copy: the caller's request must not change
	r.Header[asked] = []string{strings.Join(slices.Compact(names), ",")}
	return r
}

// corsRules allow every origin, without credentials: tokens are sent in a header, never in a cookie.
func corsRules(more []string) *cors.Cors {
	return cors.New(cors.Options{
		AllowedOrigins: []string{"*"},
		AllowedMethods: []string{"GET", "POST", "PUT", "PATCH", "DELETE"},
		AllowedHeaders: append([]string{"Accept", "Authorization", "Content-Type", "X-Client-IP", "X-Client-Info",
			"X-JWT-AUD", "x-use-cookie", "X-Supabase-Api-Version", "apikey"}, more...),
		ExposedHeaders: []string{"Retry-After", "X-Request-Id", "X-Sb-Error-Code", "X-Total-Count", "Link",
			"X-Supabase-Api-Version"},
		OptionsSuccessStatus: http.StatusNoContent,
		// Each call has an Authorization header and therefore a preflight. Without MaxAge, a browser would repeat the
		// preflight after 5 s.
		MaxAge: 600,
	})
}

const (
	// clientGone is the error code, in the log, of a request whose client hung up.
	clientGone = "client_gone"
	// statusClientGone is the status in the log, metrics and traces of a request whose client hung up. No client sees
	// it.
	statusClientGone = 499
)

// hungUp reports whether the client has hung up, which then explains any failure. At the time limit, net/http takes an
// incomplete body for a hang-up, so hungUp compares the time with the deadline.
func (c *call) hungUp() bool {
	deadline, bounded := c.ctx().Deadline()
	return errors.Is(c.ctx().Err(), context.Canceled) && (!bounded || time.Now().Before(deadline))
}

// hangUps counts requests whose clients hung up. At most one line a second is logged for them.
type hangUps struct{ count, next atomic.Int64 }

// add counts a hang-up. If a line may be logged now, it returns the number of hang-ups since the last line, otherwise
// 0.
func (h *hangUps) add(now time.Time) int64 {
	h.count.Add(1)
	next := h.next.Load()
	if now.UnixNano() < next || !h.next.CompareAndSwap(next, now.Add(time.Second).UnixNano()) {
		return 0
	}
	return h.count.Swap(0)
}

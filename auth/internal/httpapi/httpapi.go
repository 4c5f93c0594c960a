// Package httpapi is the HTTP face of the auth daemon: one route table, the guards before a handler,
// decoding, the JSON of answers, and the one place where failures are written.
//
// Decisions about accounts are made by package account, whose refusals httpapi converts to statuses. httpapi runs no
// query and keeps no state but the per-address limiters, each for this process alone.
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

// Options are what the handlers work with.
type Options struct {
	Core *flow.Core // what all flows share
	// Checks are what /readyz tests. Their errors go to the log; the answer has only names.
	Checks []Check
	// Version is what /health shows.
	Version string
	// Log gets one line for each request; nil: discarded.
	Log *slog.Logger
	// Observer makes spans and metrics of requests. nil: off.
	Observer *Observer
	// Now is the clock of the limiters; nil: time.Now.
	Now func() time.Time
}

// Settings are the settings that may change while the daemon runs. A request keeps the settings that it began with.
// Fields without a tag are computed from other settings.
type Settings struct {
	Redirects *redirect.List // where links may lead besides to the site
	// Time for one request; then 504. 0: any time.
	MaxDuration time.Duration `env:"AUTH_API_MAX_REQUEST_DURATION" envDefault:"10s" min:"0s" table:"API"`
	// Header whose value becomes the request's id, and in which it is answered; unset: X-Request-Id is
	// answered, nothing is inherited.
	RequestIDHeader string `env:"AUTH_REQUEST_ID_HEADER" table:"API"`
	// Headers that browsers may send besides the usual ones.
	CORSHeaders []string `env:"AUTH_CORS_ALLOWED_HEADERS" table:"API"`
	// Values of X-Forwarded-Host that links may be made of instead of API_EXTERNAL_URL.
	ExternalHosts []string `env:"AUTH_MAILER_EXTERNAL_HOSTS" table:"Mailer"`
	// The first value of Auth-Forwarded-For is the client's address. Only behind a proxy that sets it.
	ForwardedFor bool `env:"AUTH_SECURITY_FORWARDED_FOR_ENABLED" envDefault:"false" table:"Security"`
	// Header, set by a trusted proxy, whose first value identifies the client for the limits below; unset: no limits by
	// client but where `AUTH_TRUSTED_PROXIES` or `AUTH_RATE_LIMIT_BY_PEER` gives an address.
	LimitHeader string `env:"AUTH_RATE_LIMIT_HEADER" table:"Limits"`
	// Where no header identifies the client, the connection's address does.
	LimitByPeer bool   `env:"AUTH_RATE_LIMIT_BY_PEER" envDefault:"false" table:"Limits"`
	Limits      Limits `table:"Limits"`
	// TrustedProxies are the peers whose X-Forwarded-For counts (AUTH_TRUSTED_PROXIES).
	TrustedProxies []netip.Prefix
	// Captcha verifies the captcha of each request that signs up or in, or has something sent to an address
	// (SECURITY_CAPTCHA_*); nil: none is required.
	Captcha *captcha.Verifier

	// GET /verify shows a page with a button instead of using the link up, against mail filters that open links.
	ConfirmPage bool `env:"AUTH_MAILER_CONFIRM_PAGE" envDefault:"false" table:"Mailer"`
	// Path below which the API answers too, such as /auth/v1 for createClient of supabase-js without a proxy. A proxy
	// that guards paths has to guard both spellings.
	Prefix string `env:"AUTH_API_PREFIX" table:"API"`
	// Look is the look of pages; nil: an unnamed site, in English.
	Look *pages.Look
	// External are the names of the providers that are on, SMSProvider the gateway: what GET /settings publishes
	// besides settings of the flows.
	External    []string
	SMSProvider string
}

// Limits are requests per address. 0 refuses all.
type Limits struct {
	// /verify, /authorize and /callback, each, of one client in 5 minutes.
	Verify int `env:"AUTH_RATE_LIMIT_VERIFY" envDefault:"30" min:"0"`
	// /token of one client in 5 minutes; a refresh token of ours is not counted.
	Token int `env:"AUTH_RATE_LIMIT_TOKEN_REFRESH" envDefault:"150" min:"0"`
	// /signup, /otp, /magiclink, /recover, /resend, PUT /user, /reauthenticate and POST /factors, each, of
	// one client in 5 minutes.
	OTP int `env:"AUTH_RATE_LIMIT_OTP" envDefault:"30" min:"0"`
	// Anonymous sign-ins of one client in an hour.
	Anonymous int `env:"AUTH_RATE_LIMIT_ANONYMOUS_USERS" envDefault:"30" min:"0"`
	// Options of a passkey's sign-in, answers to them, and both steps of its registration, each, of one client in 5
	// minutes.
	Passkeys int `env:"AUTH_RATE_LIMIT_PASSKEY" envDefault:"30" min:"0"`
	// Challenges, and answers, of one client in a minute; 30 at once.
	Factors int `env:"AUTH_MFA_RATE_LIMIT_CHALLENGE_AND_VERIFY" envDefault:"15" min:"0" table:"Factors"`
}

// liveSettings is Settings with the flows' settings and with values that are computed from both once.
type liveSettings struct {
	Settings
	flows     *flow.Settings
	handler   http.Handler // with CORS around it
	settings  []byte       // the body of GET /settings
	idHeader  string       // in canonical form
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
	facts    map[string]facts // of routes, by pattern
	health   []byte
	ready    readiness
	limiters [limiterCount]limiter
	refused  onceAMinute // redirect_to
	gone     hangUps
	// refusedAdmins are the subjects of whom a refusal on a route for administrators was recorded in this minute.
	refusedAdmins onceAMinute
	missing       onceAMinute // names of the LimitHeader
	live          atomic.Pointer[liveSettings]
}

// New makes the handler of the API's port.
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

// Check reports what is missing in settings.
func (set *Settings) Check(flows *flow.Settings) error {
	if set.Redirects == nil || flows.SiteURL == "" || flows.BaseURL == "" {
		return errors.New("httpapi: needs SiteURL, BaseURL and Redirects")
	}
	return nil
}

// Apply puts new settings, which Check has accepted, in force for requests that arrive from now on, with the settings
// of the flows that are in force then.
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

// canonicalPreflight converts the names of the requested headers to lower case and sorts them. Browsers send the names
// in this form (Fetch standard, "CORS-unsafe request-header names"), the only form that package cors accepts. So an
// operator who tests the settings by hand gets the same answer as a browser.
func canonicalPreflight(r *http.Request) *http.Request {
	const asked = "Access-Control-Request-Headers"
	given := r.Header[asked]
	if len(given) == 0 {
		return r
	}
	names := strings.FieldsFunc(strings.ToLower(strings.Join(given, ",")),
		func(c rune) bool { return c == ',' || c == ' ' || c == '\t' })
	slices.Sort(names)
	r = r.Clone(r.Context()) // the caller's request must not change
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
		ExposedHeaders: []string{"Retry-After", "X-Request-Id", "X-Sb-Error-Code", "X-Total-Count", "Link",
			"X-Supabase-Api-Version"},
		OptionsSuccessStatus: http.StatusNoContent,
		// Each call has an Authorization header and therefore a preflight. Without MaxAge a browser repeats the
		// preflight after 5 s.
		MaxAge: 600,
	})
}

const (
	// clientGone is the log's code for a request whose sender hung up.
	clientGone = "client_gone"
	// statusClientGone is the status of such a request in log, metrics and traces. No client reads it.
	statusClientGone = 499
)

// hungUp reports whether the client has hung up, which explains whatever failed. At the request's deadline net/http
// takes an incomplete body for a hang-up, hence the comparison with the deadline.
func (c *call) hungUp() bool {
	deadline, bounded := c.ctx().Deadline()
	return errors.Is(c.ctx().Err(), context.Canceled) && (!bounded || time.Now().Before(deadline))
}

// hangUps counts requests whose sender hung up. One line a second is logged for them.
type hangUps struct{ count, next atomic.Int64 }

// add counts a hang-up. If a line may be logged, it returns the number of hang-ups since the last line, else 0.
func (h *hangUps) add(now time.Time) int64 {
	h.count.Add(1)
	next := h.next.Load()
	if now.UnixNano() < next || !h.next.CompareAndSwap(next, now.Add(time.Second).UnixNano()) {
		return 0
	}
	return h.count.Swap(0)
}

package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"gatehouse/auth/internal/redirect"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/httpx"
	"gatehouse/shared/settings"
)

// check first calls settle, and then makes the checks that concern several fields.
func (c *Config) check(r *settings.Report) {
	c.settle(r)
	c.checkRequired(r)
	checkURL(r, "AUTH_SITE_URL", c.General.SiteURL)
	checkURL(r, "AUTH_API_EXTERNAL_URL", c.API.ExternalURL)
	if err := store.CheckNamespace(c.DB.Store.Namespace); err != nil {
		r.Wrong("AUTH_DB_NAMESPACE", "%v", err)
	}
	for _, name := range []string{"AUTH_SESSIONS_TIMEBOX", "AUTH_SESSIONS_INACTIVITY_TIMEOUT",
		"AUTH_SESSIONS_ALLOW_LOW_AAL"} {
		if d, err := settings.Seconds(r.Text(name)); r.IsSet(name) && err == nil && d == 0 {
			r.Wrong(name, "must be more than 0")
		}
	}
	checkHeader(r, "AUTH_REQUEST_ID_HEADER", c.HTTP.RequestIDHeader)
	checkHeader(r, "AUTH_RATE_LIMIT_HEADER", c.HTTP.LimitHeader)
	for _, h := range c.HTTP.CORSHeaders {
		checkHeader(r, "AUTH_CORS_ALLOWED_HEADERS", h)
	}
	c.checkMail(r)
	c.checkSMS(r)
	c.checkCaptcha(r)
	c.checkDev(r)
	c.Console.check(r)
	c.checkExternal(r)
	c.checkTelemetry(r)
	c.checkTakeover(r)
	c.checkWebAuthn(r)
	c.checkIgnored(r)
	if role := c.Accounts.Role; slices.Contains(c.Accounts.AdminRoles, role) {
		r.Clash("AUTH_JWT_DEFAULT_GROUP_NAME=%s is one of AUTH_JWT_ADMIN_ROLES: everybody who signs up would be an "+
			"administrator", role)
	}
	if !r.IsSet("AUTH_SECRET_KEY") && r.IsSet("AUTH_JWT_SECRET") {
		r.Warn("AUTH_SECRET_KEY is not set: AUTH_JWT_SECRET is the root key too, so that changing it means naming " +
			"the old one in AUTH_SECRET_KEYS_PREVIOUS")
	}
	if s := c.JWT.Secret; s != "" && len(s) < 32 {
		r.Warn("AUTH_JWT_SECRET has fewer than 32 bytes" + weakSecret)
	}
	if r.IsSet("AUTH_SECRET_KEY") && len(c.JWT.Root) < 32 {
		r.Warn("AUTH_SECRET_KEY has fewer than 32 bytes: a copy of the database is enough to guess it, and it opens the " +
			"keys and secrets there; docs/tokens.md, \"Another root key\"")
	}
	if c.JWT.Algorithm == "EdDSA" && !r.IsSet("AUTH_JWT_KEYS") {
		r.Warn("AUTH_JWT_ALGORITHM=EdDSA: the client library's getClaims cannot check such tokens in a browser")
	}
	if strings.EqualFold(c.HTTP.LimitHeader, "X-Forwarded-For") {
		r.Warn("AUTH_RATE_LIMIT_HEADER=X-Forwarded-For: its first value is the client's own text, so that a client " +
			"has as many limits as it likes; " +
			"AUTH_TRUSTED_PROXIES reads that header from its trusted end")
	}
	if r.IsSet("AUTH_PASSWORD_MIN_LENGTH") { // the command "auth check" warns if the default is short
		if doubt := c.ShortPasswords(); doubt != "" {
			r.Warn("%s", doubt)
		}
	}
	if c.HTTP.LimitHeader == "" && !c.HTTP.LimitByPeer && !c.HTTP.ForwardedFor && len(c.API.Proxies) == 0 {
		r.Warn("no limits by client address: AUTH_RATE_LIMIT_HEADER names the header in which your proxy gives it, " +
			"AUTH_TRUSTED_PROXIES the proxies whose " +
			"X-Forwarded-For does; AUTH_RATE_LIMIT_BY_PEER=true takes the connection's")
	}
}

// ShortPasswords returns a warning if short passwords are allowed; "" if they are not.
func (c *Config) ShortPasswords() string {
	if n := max(c.Password.MinLength, 6); n < 8 {
		return fmt.Sprintf("AUTH_PASSWORD_MIN_LENGTH=%d: passwords of fewer than 8 characters are soon guessed; 8 is the "+
			"least that is recommended", n)
	}
	return ""
}

// settle chooses between two names of the same setting, and raises values that are below their bounds.
func (c *Config) settle(r *settings.Report) {
	c.API.settle(r)
	if r.IsSet("AUTH_LOG_LEVEL") {
		c.Log.Level = c.Log.AuthLevel
	}
	if c.DB.DatabaseURL != "" {
		c.DB.URL = c.DB.DatabaseURL
	}
	c.DB.AnonymousChosen = r.IsSet("AUTH_ANONYMOUS_USERS_RETENTION")
	c.API.ExternalURL = strings.TrimRight(c.API.ExternalURL, "/")
	c.General.FlowLife = max(c.General.FlowLife, 300*time.Second)
	if c.JWT.Life == 0 {
		c.JWT.Life = time.Hour
	}
	c.JWT.Issuer = cmp.Or(c.JWT.Issuer, c.API.ExternalURL)
	c.JWT.Root = cmp.Or(c.JWT.Root, c.JWT.Secret)
	for _, digits := range []*int{&c.Mailer.OTPLength, &c.SMS.OTPLength, &c.Factors.OTPLength} {
		if *digits < 6 || *digits > 10 {
			*digits = 6
		}
	}
}

func (c *Config) checkRequired(r *settings.Report) {
	for _, name := range []string{"AUTH_SITE_URL", "AUTH_API_EXTERNAL_URL", "AUTH_DB_DRIVER", "AUTH_JWT_SECRET"} {
		if !r.IsSet(name) && !r.IsSet(name+"_FILE") {
			r.Wrong(name, "is required")
		}
	}
	if c.DB.URL == "" && !r.IsSet("DATABASE_URL_FILE") && !r.IsSet("AUTH_DB_DATABASE_URL_FILE") {
		r.Clash("DATABASE_URL: is required")
	}
	for _, name := range []string{"DATABASE_URL", "AUTH_DB_DATABASE_URL", "AUTH_TAKEOVER_SOURCE_URL"} {
		checkDatabase(r, name, r.Text(name))
	}
}

// weakSecret is the end of the warning about a secret of fewer than 32 bytes.
const weakSecret = `: who guesses it from one token is any user and any administrator; docs/tokens.md, "Another JWT secret"`

// misread matches the part of a database URL after the scheme, if the driver would take a part of the password for the
// name of a host or of a database. The driver would then look the name up, and show it in an error. For the driver,
// user name and password end at the first @. If a / comes before that @, the driver sees no password, and takes the
// text before the / for host and port. So misread matches if the text that the driver takes for the host or for the
// database contains an @, or if the text that it takes for the port is not a number and an @ follows after the /.
var misread = regexp.MustCompile(
	`^([^@/]*@[^@/?]*@|([^@/]*@)?[^@/?]*/[^?]*@|[^@/?]*:[^]:@/?,]*[^]0-9:@/?,][^]:@/?,]*(\?[^@/]*)?/.*@)`)

// checkDatabase refuses a URL whose scheme is not PostgreSQL's, and a URL that misread matches. A list of key=value may
// contain :// in a value.
func checkDatabase(r *settings.Report, name, text string) {
	scheme, rest, isURL := strings.Cut(text, "://")
	switch scheme = strings.ToLower(scheme); {
	case !isURL || strings.Contains(scheme, "="):
	case scheme != "postgres" && scheme != "postgresql":
		r.Wrong(name, "is of %s; want postgres://USER:PASSWORD@HOST:PORT/DATABASE, or host=HOST dbname=DATABASE user=USER",
			scheme)
	case misread.MatchString(rest):
		r.Wrong(name, "has @ or / in its user name, password or database; write %%40 and %%2F there")
	}
}

// checkURL requires an absolute http or https URL to which a path can be appended.
func checkURL(r *settings.Report, name, text string) {
	if text == "" {
		return // reported already as missing
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
		u.User != nil || strings.ContainsAny(text, "?#") {
		r.Wrong(name, "must be http:// or https:// with a host, without user, query and fragment")
		return
	}
	if _, err := redirect.New(text, nil, false); err != nil {
		r.Wrong(name, "has a host, or a port, that no browser would take")
	}
}

// checkOutward does what checkURL does, for URLs to which secrets are sent. It also requires https, unless the URL
// leads to this machine.
func (c *Config) checkOutward(r *settings.Report, name, text string) {
	checkURL(r, name, text)
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" || httpx.IsLoopbackHost(u.Hostname()):
	case c.Providers.AllowInsecure:
		r.Warn("%s begins with http://: everybody on the way can read what it carries, credentials too", name)
	default:
		r.Wrong(name,
			"begins with http://, which everybody on the way can read and change; https://, or "+
				"AUTH_EXTERNAL_ALLOW_INSECURE_URLS=true")
	}
}

func checkHeader(r *settings.Report, setting, name string) {
	if name != "" && !httpguts.ValidHeaderFieldName(name) {
		r.Wrong(setting, "not a header name: letters, digits and - are")
	}
}

// mailed reports whether mails can be sent: by SMTP, by a hook, or to the dev mailbox.
func (c *Config) mailed() bool {
	return c.Dev.Mailbox || c.Hooks.SendEmail.Enabled || c.SMTP.Server.Host != "" && c.SMTP.Server.From != ""
}

func (c *Config) checkMail(r *settings.Report) {
	switch {
	case c.Dev.Mailbox:
		if c.SMTP.Server.Host != "" {
			r.Warn("AUTH_SMTP_HOST has no effect with AUTH_DEV_MAILBOX=true: nothing is sent")
		}
	case c.mailed():
	case c.Accounts.Email.Enabled && !c.Accounts.Email.Autoconfirm:
		for _, name := range []string{"AUTH_SMTP_HOST", "AUTH_SMTP_ADMIN_EMAIL"} {
			if !r.IsSet(name) {
				r.Wrong(name,
					"is required, unless AUTH_EXTERNAL_EMAIL_ENABLED=false, AUTH_MAILER_AUTOCONFIRM=true, "+
						"AUTH_HOOK_SEND_EMAIL_ENABLED=true or AUTH_DEV_MAILBOX=true")
			}
		}
	case c.Accounts.Email.Enabled:
		r.Warn("AUTH_SMTP_HOST and AUTH_SMTP_ADMIN_EMAIL are not both set: recovery, sign-in links and every other " +
			"mail are refused")
	}
}

// checkDev refuses the dev mailbox unless the daemon runs on a developer's machine, since it shows the codes of all
// users.
func (c *Config) checkDev(r *settings.Report) {
	if !c.Dev.Mailbox {
		return
	}
	if u, err := url.Parse(c.API.ExternalURL); err == nil && c.API.ExternalURL != "" && !httpx.IsLoopbackHost(u.Hostname()) {
		r.Clash("AUTH_DEV_MAILBOX=true shows every mail to everybody on this machine: it needs a loopback address in "+
			"AUTH_API_EXTERNAL_URL, not %s", u.Hostname())
	}
	if c.Dev.MailboxPort != 0 && c.Dev.MailboxPort == c.API.Port {
		r.Clash("AUTH_DEV_MAILBOX_PORT and PORT are both %d", c.API.Port)
	}
}

// previousRoots returns the items of AUTH_SECRET_KEYS_PREVIOUS.
func (c *Config) previousRoots() []string {
	text, sep := c.JWT.PreviousRoots, ","
	if strings.Contains(text, "\n") {
		sep = "\n"
	}
	var all []string
	for item := range strings.SplitSeq(text, sep) {
		if item = strings.Trim(item, " \t\r"); item != "" && !slices.Contains(all, item) {
			all = append(all, item)
		}
	}
	return all
}

// parseProxies parses networks and single addresses of trusted proxies.
func parseProxies(r *settings.Report, items []string) (all []netip.Prefix) {
	for _, item := range items {
		p, err := netip.ParsePrefix(item)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(item); err == nil {
				p = netip.PrefixFrom(a, a.BitLen())
			}
		}
		if err != nil {
			r.Wrong("AUTH_TRUSTED_PROXIES", "%q is neither a network such as 10.0.0.0/8 nor an address", item)
			continue
		}
		all = append(all, p.Masked())
	}
	return all
}

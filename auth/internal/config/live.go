package config

import (
	"cmp"
	"errors"
	"log/slog"
	"math"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/hook"
	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/keys"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/pages"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/redirect"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/sms"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/settings"
)

// Live holds the settings of the other packages, as computed from Config. A SIGHUP may replace all of them.
type Live struct {
	Accounts flow.Settings
	API      httpapi.Settings
	External provider.Settings // the daemon makes the provider.Set from it
	Keys     keys.Settings
	Mail     mail.Settings
	Hooks    map[hook.Point]hook.Target
	SendSync bool       // requests wait for the hooks SEND_EMAIL and SEND_SMS
	SMTP     *mail.SMTP // nil: no mail server is configured
	SMS      sms.Settings
	Hash     password.Params

	oldNames bool            // some settings have names of supabase/auth
	unset    []FormerDefault // unset settings whose defaults differ from those of supabase/auth
}

// live computes a Live, and reports the errors that it finds.
func (c *Config) live(r *settings.Report) (l Live) {
	var err error
	if l.Hash, err = password.ParseParams(c.Password.Hash); err != nil {
		r.Wrong("AUTH_PASSWORD_HASH", "%v", err)
	}
	l.External = c.providerSettings(r)
	c.warnCookies(r, l.External)
	l.Accounts = c.accountSettings(r)
	site, folder := c.siteSettings(r), c.templateFolder(r)
	languages := c.languages(r, folder)
	l.Accounts.SiteName, l.Accounts.Languages = site.Name, languages
	l.API = c.apiSettings(r)
	l.API.Look = pages.NewLook(site, languages)
	l.API.External = enabledProviders(l.External)
	l.warnAutoconfirm(r)
	l.Keys = c.keySettings(r)
	l.Hooks, l.SendSync = c.Hooks.targets(r), c.Hooks.SendSync
	l.Mail = c.Mail
	l.Mail.SiteURL, l.Mail.Subjects, l.Mail.Templates = c.General.SiteURL, c.Mailer.Subjects.byKind(),
		c.Mailer.Templates.byKind()
	l.Mail.Site, l.Mail.Languages, l.Mail.Folder = site, languages, folder
	l.warnTemplates(r)
	if err := l.Mail.Check(); err != nil {
		r.Warn("%v: the default is used", err)
	}
	if c.SMTP.Server.Host != "" && c.SMTP.Server.From != "" && !c.Dev.Mailbox {
		l.SMTP = c.makeSMTP(r)
	}
	l.SMS = c.smsSettings()
	l.oldNames, l.unset = r.Renamed(), c.formerDefaults(r)
	return l
}

func (c *Config) accountSettings(r *settings.Report) flow.Settings {
	s := c.Accounts
	s.SiteURL, s.BaseURL, s.Issuer, s.AccessLife = c.General.SiteURL, c.API.ExternalURL, c.JWT.Issuer, c.JWT.Life
	s.FlowLife = c.General.FlowLife
	s.Email = c.emailSettings(r)
	s.Phone = c.phoneSettings(r)
	s.Passwords.Policy = password.NewPolicy(c.Password.MinLength, c.Password.Required, c.Password.RefuseCommon)
	s.Factors = c.factorSettings(r)
	return s
}

func (c *Config) emailSettings(r *settings.Report) flow.EmailSettings {
	links, err := mail.NewLinks(c.Mailer.Paths)
	if err != nil {
		r.Clash("%v", err)
	}
	s := c.Accounts.Email
	s.Configured, s.OTPLength, s.Links = c.mailed(), c.Mailer.OTPLength, links
	s.Sent = parseRate(r, "AUTH_RATE_LIMIT_EMAIL_SENT", c.Limits.Emails)
	s.ConfirmationInterval, s.Interval = 900*time.Second, 60*time.Second
	if r.IsSet("AUTH_SMTP_MAX_FREQUENCY") {
		s.ConfirmationInterval, s.Interval = c.SMTP.MaxFrequency, c.SMTP.MaxFrequency
	}
	return s
}

func (c *Config) apiSettings(r *settings.Report) httpapi.Settings {
	s := c.HTTP
	if _, err := redirect.New(c.General.SiteURL, nil, false); err == nil { // other errors are reported already
		if s.Redirects, err = redirect.New(c.General.SiteURL, c.General.AllowList, c.General.AnyPort); err != nil {
			for _, e := range parts(err) {
				r.Clash("AUTH_URI_ALLOW_LIST: %v", e)
			}
		} else {
			for _, doubt := range s.Redirects.Lint() {
				r.Warn("AUTH_URI_ALLOW_LIST: %s", doubt)
			}
		}
	}
	if err := httpapi.CheckPrefix(s.Prefix); err != nil {
		r.Wrong("AUTH_API_PREFIX", "%v", err)
	}
	s.TrustedProxies, s.Captcha = parseProxies(r, c.API.Proxies), c.makeCaptcha(r)
	s.SMSProvider = c.Gateways.Provider
	return s
}

func (c *Config) keySettings(r *settings.Report) keys.Settings {
	s := c.Keys
	s.Issuer, s.AccessLife = c.JWT.Issuer, c.JWT.Life
	s.Algorithm, _ = token.ParseAlgorithm(c.JWT.Algorithm) // the field's tag allows only valid names
	if c.JWT.Secret != "" {
		s.Secret, _ = token.NewSecret(c.JWT.KeyID, []byte(c.JWT.Secret)) // fails only for an empty secret
	}
	if c.JWT.Keys != "" {
		given, err := token.ParseKeys(c.JWT.Keys)
		for _, e := range parts(err) {
			r.Wrong("AUTH_JWT_KEYS", "%v", e)
		}
		s.Given = given
		for _, e := range given {
			if e.Key.Weak() {
				r.Warn("AUTH_JWT_KEYS: the secret %q has fewer than 32 bytes"+weakSecret, e.Key.ID())
			}
			if c.Keys.AcceptSecret && e.Key.ID() == c.JWT.KeyID {
				r.Clash("AUTH_JWT_KEY_ID=%s is the kid of a key in AUTH_JWT_KEYS, too: it names AUTH_JWT_SECRET",
					c.JWT.KeyID)
			}
		}
	}
	if s.Algorithm == token.HS256 {
		if !s.AcceptSecret {
			r.Clash(
				"AUTH_JWT_ALGORITHM=HS256 signs with AUTH_JWT_SECRET, whose tokens AUTH_JWT_ACCEPT_HS256=false refuses")
		}
		if c.JWT.Keys != "" {
			r.Clash("AUTH_JWT_ALGORITHM=HS256 and AUTH_JWT_KEYS, one of whose keys signs, cannot both be set")
		}
	}
	return s
}

// Root returns the root key together with the earlier root keys.
func (c *Config) Root() *secret.Root { return secret.NewRoot(c.JWT.Root, c.previousRoots()...) }

// StoreOptions returns the options for opening the database.
func (c *Config) StoreOptions(log *slog.Logger) store.Options {
	return store.Options{URL: c.DB.URL, Settings: c.DB.Store, Log: log}
}

func (c *Config) makeSMTP(r *settings.Report) *mail.SMTP {
	headers, err := mail.ParseHeaders(c.SMTP.Headers)
	if err != nil {
		r.Warn("%v: mails go without them", err)
	}
	u, err := url.Parse(c.API.ExternalURL)
	if err != nil || u.Hostname() == "" {
		return nil // reported already
	}
	if (c.SMTP.Server.User == "") != (c.SMTP.Server.Pass == "") {
		r.Warn("AUTH_SMTP_USER and AUTH_SMTP_PASS are not both set: to sign in, the mail server needs both")
	}
	s, err := mail.NewSMTP(mail.SMTPOptions{
		SMTPSettings: c.SMTP.Server, Encryption: mail.Encryption(c.SMTP.TLS),
		SenderName: cmp.Or(c.SMTP.SenderName, c.SMTP.Server.From), Hostname: u.Hostname(), Headers: headers,
	})
	for _, e := range parts(err) {
		r.Clash("%v", e)
	}
	return s
}

// parseRate parses a rate: "30", which means 30 an hour, or "30/10m". It drops the fraction of a number above 1. It
// keeps a fraction below 1, since 0 may mean that there is no limit.
func parseRate(r *settings.Report, name, text string) flow.Rate {
	number, per, given := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	rate := flow.Rate{N: max(math.Trunc(n), min(n, 1)), Per: time.Hour}
	if given && err == nil {
		rate.Per, err = settings.Seconds(strings.TrimSpace(per))
	}
	if err != nil || math.IsNaN(n) || n < 0 || n > 1e9 || rate.Per <= 0 {
		r.Wrong(name, "wants a number, so many an hour, or 30/10m")
		return flow.Rate{}
	}
	return rate
}

// parts returns the errors that are joined in err, or err itself.
func parts(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// keepUntilRestart copies, from running to c, the values of the settings that only a restart can change. It returns the
// names of the settings whose values differed.
func keepUntilRestart(running, c *Config) (names []string) {
	var walk func(old, fresh reflect.Value)
	walk = func(old, fresh reflect.Value) {
		for i := range old.NumField() {
			f := old.Type().Field(i)
			switch {
			case f.Type.Kind() == reflect.Struct:
				walk(old.Field(i), fresh.Field(i))
			case f.Tag.Get("restart") != "" && !reflect.DeepEqual(old.Field(i).Interface(), fresh.Field(i).Interface()):
				names = append(names, f.Tag.Get("env"))
				fresh.Field(i).Set(old.Field(i))
			}
		}
	}
	walk(reflect.ValueOf(running).Elem(), reflect.ValueOf(c).Elem())
	return names
}

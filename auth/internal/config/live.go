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

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/hook"
	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/keys"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/redirect"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/sms"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/settings"
)

// Live is what is made of the settings for the rooms below: all of it may be replaced by a SIGHUP.
type Live struct {
	Accounts account.Settings
	API      httpapi.Settings
	External provider.Settings // of which the daemon makes the set
	Keys     keys.Settings
	Mail     mail.Settings
	Hooks    map[hook.Point]hook.Target
	SendSync bool       // SEND_EMAIL and SEND_SMS are waited for
	SMTP     *mail.SMTP // nil: nothing is mailed
	SMS      sms.Settings
	Hash     password.Params
}

// live makes it, and reports what only the making shows to be wrong.
func (c *Config) live(r *settings.Report) (l Live) {
	var err error
	if l.Hash, err = password.ParseParams(c.Password.Hash); err != nil {
		r.Wrong("AUTH_PASSWORD_HASH", "%v", err)
	}
	l.External = c.External.providerSettings(r)
	c.warnCookies(r, l.External)
	l.Accounts = c.accountSettings(r)
	l.API = c.apiSettings(r)
	l.API.Shown.External = enabledProviders(l.External)
	l.Keys = c.keySettings(r)
	l.Hooks, l.SendSync = c.Hooks.targets(r), c.Hooks.SendSync
	l.Mail = mail.Settings{
		SiteURL: c.General.SiteURL, Subjects: c.Mailer.Subjects.byKind(), Templates: c.Mailer.Templates.byKind(),
		MaxSize: c.Mailer.TemplateSize, MaxAge: c.Mailer.TemplateAge, Retry: c.Mailer.TemplateRetry,
		Reloading: c.Mailer.TemplateReload, MaxIdle: c.Mailer.TemplateIdle,
	}
	if err := l.Mail.Check(); err != nil {
		r.Warn("%v: the default is used", err)
	}
	if c.SMTP.Host != "" && c.SMTP.AdminEmail != "" && !c.Dev.Mailbox {
		l.SMTP = c.makeSMTP(r)
	}
	l.SMS = c.smsSettings()
	return l
}

func (c *Config) accountSettings(r *settings.Report) account.Settings {
	links, err := mail.NewLinks(mail.Paths{
		Invite: c.Mailer.PathInvite, Confirmation: c.Mailer.PathConfirmation, Recovery: c.Mailer.PathRecovery,
		EmailChange: c.Mailer.PathEmailChange,
	})
	if err != nil {
		r.Clash("%v", err)
	}
	confirmation, interval := 900*time.Second, 60*time.Second
	if r.IsSet("AUTH_SMTP_MAX_FREQUENCY") {
		confirmation, interval = c.SMTP.MaxFrequency, c.SMTP.MaxFrequency
	}
	return account.Settings{
		SiteURL: c.General.SiteURL, BaseURL: c.API.ExternalURL,
		Audience: c.JWT.Audience, Role: c.JWT.DefaultRole, Issuer: c.JWT.Issuer, AccessLife: c.JWT.Life,
		AdminRoles: c.JWT.AdminRoles, AdminRequireAAL2: c.JWT.AdminAAL2,
		DisableSignup: c.General.DisableSignup, Anonymous: c.General.Anonymous,
		RevealExisting: c.Security.RevealExisting, HideUnknownOnOTP: c.Security.HideUnknown,
		HideUnconfirmed: c.Security.HideUnconfirmed,
		SentPerClient:   c.Limits.SentPerClient, KnownPlaces: c.Security.KnownPlaces, CodesPerAccount: c.Limits.Codes,
		MetadataMaxBytes: c.Security.MetadataBytes, FlowLife: c.General.FlowLife,
		Email: account.EmailSettings{
			Enabled: c.General.Email, MagicLink: c.General.MagicLink, Configured: c.mailed(), Autoconfirm: c.Mailer.Autoconfirm,
			SecureChange: c.Mailer.SecureChange, ChangeEndsSessions: c.Security.EmailEnds,
			OTPLife: c.Mailer.OTPLife, OTPLength: c.Mailer.OTPLength, ConfirmationInterval: confirmation, Interval: interval,
			Sent: parseRate(r, "AUTH_RATE_LIMIT_EMAIL_SENT", c.Limits.Emails), Authorized: c.General.Authorized, Links: links,
			NotifyPasswordChanged: c.Mailer.Notify.PasswordChanged, NotifyEmailChanged: c.Mailer.Notify.EmailChanged,
			NotifyPhoneChanged:   c.Mailer.Notify.PhoneChanged,
			NotifyIdentityLinked: c.Mailer.Notify.IdentityLinked, NotifyIdentityUnlinked: c.Mailer.Notify.IdentityUnlinked,
			NotifyFactorEnrolled: c.Mailer.Notify.FactorEnrolled, NotifyFactorUnenrolled: c.Mailer.Notify.FactorUnenrolled,
		},
		Phone:    c.phoneSettings(r),
		External: c.externalSettings(),
		Passwords: account.PasswordSettings{
			Policy:         password.NewPolicy(c.Password.MinLength, c.Password.Required, c.Password.RefuseCommon),
			PolicyForAdmin: c.Password.PolicyForAdmin, TriesPerAccount: c.Limits.Passwords,
			RequireCurrent: c.Security.RequireCurrent, RequireNonce: c.Security.RequireNonce,
			NonceMaxAge: c.Security.NonceMaxAge, ChangeEndsSessions: c.Security.PasswordEnds,
		},
		Sessions: account.SessionSettings{
			Timebox: c.Sessions.Timebox, Inactivity: c.Sessions.Inactivity, SinglePerUser: c.Sessions.SinglePerUser,
			Tags:     c.Sessions.Tags,
			Rotation: c.Sessions.Rotation, ReuseInterval: c.Sessions.ReuseInterval, RefreshBurst: c.Limits.Refreshes,
			MaxPerUser: c.Sessions.MaxPerUser, AllowLowAAL: c.Sessions.AllowLowAAL,
		},
		Factors: c.factorSettings(r),
	}
}

func (c *Config) apiSettings(r *settings.Report) httpapi.Settings {
	var list *redirect.List
	if _, err := redirect.New(c.General.SiteURL, nil, false); err == nil { // else it was said already
		if list, err = redirect.New(c.General.SiteURL, c.General.AllowList, c.General.AnyPort); err != nil {
			for _, e := range parts(err) {
				r.Clash("AUTH_URI_ALLOW_LIST: %v", e)
			}
		} else {
			for _, doubt := range list.Lint() {
				r.Warn("AUTH_URI_ALLOW_LIST: %s", doubt)
			}
		}
	}
	return httpapi.Settings{
		SiteURL: c.General.SiteURL, Redirects: list, ExternalURL: c.API.ExternalURL, ExternalHosts: c.Mailer.Hosts,
		Audience: c.JWT.Audience, RequestIDHeader: c.API.RequestID, CORSHeaders: c.API.CORSHeaders,
		MaxDuration: c.API.MaxDuration, ForwardedFor: c.Security.ForwardedFor, TrustedProxies: parseProxies(r, c.API.Proxies),
		LimitHeader: c.Limits.Header, LimitByPeer: c.Limits.ByPeer,
		Captcha: c.makeCaptcha(r),
		Limits: httpapi.Limits{OTP: c.Limits.OTP, Verify: c.Limits.Verify, Token: c.Limits.Token,
			Anonymous: c.Limits.Anonymous, Factors: c.Factors.Limit},
		Shown: httpapi.Shown{
			DisableSignup: c.General.DisableSignup, Email: c.General.Email, Phone: c.General.Phone,
			Anonymous:         c.General.Anonymous,
			MailerAutoconfirm: c.Mailer.Autoconfirm, PhoneAutoconfirm: c.SMS.Autoconfirm, SMSProvider: c.SMS.Provider,
		},
	}
}

func (c *Config) keySettings(r *settings.Report) keys.Settings {
	s := keys.Settings{AcceptSecret: c.JWT.AcceptHS256, Issuer: c.JWT.Issuer, AccessLife: c.JWT.Life}
	s.Algorithm, _ = token.ParseAlgorithm(c.JWT.Algorithm) // one of the four, as its tag says
	if c.JWT.Secret != "" {
		s.Secret, _ = token.NewSecret(c.JWT.KeyID, []byte(c.JWT.Secret)) // fails only when empty
	}
	if c.JWT.Keys != "" {
		given, err := token.ParseKeys(c.JWT.Keys)
		for _, e := range parts(err) {
			r.Wrong("AUTH_JWT_KEYS", "%v", e)
		}
		s.Given = given
		for _, e := range given {
			if e.Key.Weak() {
				r.Warn("AUTH_JWT_KEYS: the secret %q has fewer than 32 bytes: such a secret can be guessed from one token",
					e.Key.ID())
			}
			if c.JWT.AcceptHS256 && e.Key.ID() == c.JWT.KeyID {
				r.Clash("AUTH_JWT_KEY_ID=%s is the kid of a key in AUTH_JWT_KEYS, too: it names AUTH_JWT_SECRET", c.JWT.KeyID)
			}
		}
	}
	if s.Algorithm == token.HS256 {
		if !s.AcceptSecret {
			r.Clash("AUTH_JWT_ALGORITHM=HS256 signs with AUTH_JWT_SECRET, whose tokens AUTH_JWT_ACCEPT_HS256=false refuses")
		}
		if c.JWT.Keys != "" {
			r.Clash("AUTH_JWT_ALGORITHM=HS256 and AUTH_JWT_KEYS, one of whose keys signs, cannot both be set")
		}
	}
	return s
}

// Root is the root key, with the earlier ones.
func (c *Config) Root() *secret.Root { return secret.NewRoot(c.JWT.Root, c.previousRoots()...) }

// StoreOptions are how the database is opened.
func (c *Config) StoreOptions(log *slog.Logger) store.Options {
	return store.Options{
		URL: c.DB.URL, Namespace: c.DB.Namespace, MaxConns: c.DB.MaxPool,
		MaxConnLifetime: c.DB.ConnLife, MaxConnIdleTime: c.DB.ConnIdle, HealthCheckPeriod: c.DB.HealthCheck, Log: log,
	}
}

func (c *Config) makeSMTP(r *settings.Report) *mail.SMTP {
	headers, err := mail.ParseHeaders(c.SMTP.Headers)
	if err != nil {
		r.Warn("%v: mails go without them", err)
	}
	u, err := url.Parse(c.API.ExternalURL)
	if err != nil || u.Hostname() == "" {
		return nil // said already
	}
	s, err := mail.NewSMTP(mail.SMTPOptions{
		Host: c.SMTP.Host, Port: c.SMTP.Port, Encryption: mail.Encryption(c.SMTP.TLS), User: c.SMTP.User, Pass: c.SMTP.Pass,
		From: c.SMTP.AdminEmail, SenderName: cmp.Or(c.SMTP.SenderName, c.SMTP.AdminEmail),
		Hostname: u.Hostname(), Headers: headers,
	})
	for _, e := range parts(err) {
		r.Clash("%v", e)
	}
	return s
}

// parseRate reads "30", so many an hour, or "30/10m".
func parseRate(r *settings.Report, name, text string) account.Rate {
	number, per, given := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	rate := account.Rate{N: n, Per: time.Hour}
	if given && err == nil {
		rate.Per, err = settings.Seconds(strings.TrimSpace(per))
	}
	if err != nil || math.IsNaN(n) || n < 0 || n > 1e9 || rate.Per <= 0 {
		r.Wrong(name, "wants a number, so many an hour, or 30/10m")
		return account.Rate{}
	}
	return rate
}

// parts are the errors that were joined into one, or the one itself.
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

// keepUntilRestart puts the running values back where only a restart changes them, and names the
// settings in which the two differed.
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

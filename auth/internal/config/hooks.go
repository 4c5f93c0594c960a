package config

import (
	"gatehouse/auth/internal/hook"
	"gatehouse/shared/settings"
)

// hooksConfig has the settings of hooks: calls of the operator's own code (docs/hooks.md).
type hooksConfig struct {
	// SendSMS is called instead of an SMS gateway.
	SendSMS hookConfig `envPrefix:"AUTH_HOOK_SEND_SMS_"`
	// SendEmail is called instead of SMTP.
	SendEmail hookConfig `envPrefix:"AUTH_HOOK_SEND_EMAIL_"`
	// Claims replaces the claims of access tokens.
	Claims hookConfig `envPrefix:"AUTH_HOOK_CUSTOM_ACCESS_TOKEN_"`
	// Factor decides on each answer to the challenge of a second factor.
	Factor hookConfig `envPrefix:"AUTH_HOOK_MFA_VERIFICATION_ATTEMPT_"`
	// Password decides whether to accept a password that was tried.
	Password hookConfig `envPrefix:"AUTH_HOOK_PASSWORD_VERIFICATION_ATTEMPT_"`
	// Before may refuse a new user.
	Before hookConfig `envPrefix:"AUTH_HOOK_BEFORE_USER_CREATED_"`
	// After is notified of each new user.
	After hookConfig `envPrefix:"AUTH_HOOK_AFTER_USER_CREATED_"`
	// true: SEND_SMS and SEND_EMAIL are called before the answer to a request, which reports their errors. false: they
	// are called after it, and again if they fail.
	SendSync bool `env:"AUTH_HOOK_SEND_SYNC" envDefault:"false"`
}

// hookConfig has the settings of one hook.
type hookConfig struct {
	// true: the hook is called.
	Enabled bool `env:"ENABLED" envDefault:"false"`
	// Required with ENABLED. `https://…`, `http://…` on localhost, 127.0.0.1, ::1 or host.docker.internal, or
	// `pg-functions://postgres/schema/function`.
	URI string `env:"URI" secret:"url"`
	// Required for http and https. Secrets that sign the calls: `v1,whsec_` and 32 to 88 characters of base64; several
	// are separated by a vertical bar.
	Secrets string `env:"SECRETS" secret:"true"`
}

// stem is a hook, with the text with which the names of its settings begin.
type stem struct {
	name  string
	point hook.Point
	c     hookConfig
}

func (h *hooksConfig) stems() []stem {
	return []stem{
		{"AUTH_HOOK_SEND_SMS", hook.SendSMS, h.SendSMS}, {"AUTH_HOOK_SEND_EMAIL", hook.SendEmail, h.SendEmail},
		{"AUTH_HOOK_CUSTOM_ACCESS_TOKEN", hook.CustomAccessToken, h.Claims},
		{"AUTH_HOOK_MFA_VERIFICATION_ATTEMPT", hook.FactorAttempt, h.Factor},
		{"AUTH_HOOK_PASSWORD_VERIFICATION_ATTEMPT", hook.PasswordAttempt, h.Password},
		{"AUTH_HOOK_BEFORE_USER_CREATED", hook.BeforeUserCreated, h.Before},
		{"AUTH_HOOK_AFTER_USER_CREATED", hook.AfterUserCreated, h.After},
	}
}

// targets returns what to call for each hook that is on. The settings of a hook that is off are not checked.
func (h *hooksConfig) targets(r *settings.Report) map[hook.Point]hook.Target {
	all := map[hook.Point]hook.Target{}
	for _, s := range h.stems() {
		if !s.c.Enabled {
			continue
		}
		if s.c.URI == "" {
			r.Clash("%s_URI is required with %s_ENABLED=true", s.name, s.name)
			continue
		}
		t, err := hook.ParseURI(s.c.URI)
		if err != nil {
			r.Wrong(s.name+"_URI", "%v", err)
			continue
		}
		if !t.Function() && s.c.Secrets == "" {
			r.Clash("%s_SECRETS is required where %s_URI is http or https", s.name, s.name)
			continue
		}
		if s.c.Secrets != "" {
			if t, err = t.WithSecrets(s.c.Secrets); err != nil {
				r.Wrong(s.name+"_SECRETS", "%v", err)
				continue
			}
		}
		all[s.point] = t
	}
	return all
}

package config

import (
	"fmt"

	"gatehouse/shared/settings"
)

// FormerDefault is a setting whose default differs from its default in supabase/auth, and which the operator has not
// set.
type FormerDefault struct {
	// Line is the line of .env that restores the default of supabase/auth; Text says what differs.
	Line, Text string
}

// formerDefaults has, for each setting whose default differs from its default in supabase/auth, the name, the default
// of supabase/auth, and a text that says what differs. An operator who sets the setting to any value gets no warning
// about it.
var formerDefaults = []struct{ name, value, text string }{
	{"AUTH_JWT_ALGORITHM", "HS256",
		"tokens are signed with RS256: whatever checks them with JWT_SECRET (data API, storage, own back ends) " +
			"refuses them; " +
			"AUTH_JWT_ALGORITHM=HS256 signs as before"},
	{"AUTH_MAILER_OTP_EXP", "86400", "links and codes in mails live 1h (24h before)"},
	{"AUTH_MAILER_SHOW", "both", "mails show a link alone (link and code before)"},
	{"AUTH_SMS_OTP_EXP", "60", "codes in SMS live 5m (1m before)"},
	{"AUTH_SMTP_MAX_FREQUENCY", "60", "a sign-up's confirmation is sent again after 15m (1m before)"},
	{"AUTH_SECURITY_REFRESH_TOKEN_REUSE_INTERVAL", "87600h",
		"a client that lost the answer to a refresh can repeat it for 10s (at any time before)"},
	{"AUTH_SECURITY_EMAIL_CHANGE_ENDS_SESSIONS", "false", "a changed address ends the user's other sessions"},
	{"AUTH_SECURITY_REAUTHENTICATION_MAX_AGE", "24h",
		"a new password needs a nonce in sessions younger than a day too"},
	{"AUTH_PASSWORD_POLICY_FOR_ADMIN", "false", "the password policy holds for administrators' requests"},
	{"AUTH_ANONYMOUS_USERS_RETENTION", "0",
		"anonymous users idle for 30 days are removed; the %d that were carried over are kept"},
}

func (c *Config) formerDefaults(r *settings.Report) (list []FormerDefault) {
	for _, d := range formerDefaults {
		switch {
		case r.IsSet(d.name),
			d.name == "AUTH_JWT_ALGORITHM" && r.IsSet("AUTH_JWT_KEYS"),
			d.name == "AUTH_SECURITY_REAUTHENTICATION_MAX_AGE" && !c.Accounts.Passwords.RequireNonce:
		default:
			list = append(list, FormerDefault{d.name + "=" + d.value, d.text})
		}
	}
	return list
}

// FormerDefaults returns the warnings for operators who move from supabase/auth: operators who use old names of
// settings, or who have completed a takeover, in which case closed is true. anonymous is how many anonymous users the
// takeover has carried over.
func (l *Live) FormerDefaults(closed bool, anonymous int64) (list []FormerDefault) {
	if !closed && !l.oldNames {
		return nil
	}
	for _, d := range l.unset {
		if d.Line == "AUTH_ANONYMOUS_USERS_RETENTION=0" {
			d.Text = fmt.Sprintf(d.Text, anonymous)
		}
		list = append(list, d)
	}
	return list
}

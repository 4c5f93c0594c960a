package config

import (
	"strings"
	"time"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/takeover"
	"gatehouse/shared/settings"
)

// takeoverConfig has the settings that only the command "auth takeover" reads.
type takeoverConfig struct {
	// Connection string of the database from which auth takeover reads, if the database or the role differs; unset:
	// DATABASE_URL.
	SourceURL string `env:"AUTH_TAKEOVER_SOURCE_URL" secret:"url" restart:"true"`
	// Keys of the columns that supabase/auth has encrypted, as `ID:KEY,ID:KEY`; only auth takeover reads them.
	DecryptionKeys string `env:"AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS" secret:"true" restart:"true"`
}

// formerLinkLife is how long links in mails of supabase/auth are valid by default.
const formerLinkLife = 24 * time.Hour

// TakeoverSettings returns the settings on which the rows of a takeover depend. r is the report of Load.
func (c *Config) TakeoverSettings(l Live, r *settings.Report) (takeover.Settings, error) {
	s := takeover.Settings{
		Audience: l.Accounts.Audience, Role: l.Accounts.Role, AdminRoles: l.Accounts.AdminRoles,
		Namespace: c.DB.Store.Namespace,
		LinkLife:  formerLinkLife, OTPLife: c.Accounts.Email.OTPLife, Root: c.Root(),
		Providers:    map[string]bool{"email": c.Accounts.Email.Enabled, "phone": c.Accounts.Phone.Enabled},
		Free:         map[string]bool{},
		RelyingParty: l.Accounts.WebAuthn.RPID != "", SecurityKeys: l.Accounts.Factors.WebAuthn.Verify,
	}
	const otp = "AUTH_MAILER_OTP_EXP"
	if r.IsSet(otp) && r.Spelled(otp) != otp { // under its old name, the setting has the value that supabase/auth used
		s.LinkLife = c.Accounts.Email.OTPLife
	}
	for _, name := range provider.Names() {
		s.Providers[name] = l.External.Clients[name].Enabled
	}
	for name, client := range l.External.OIDC {
		s.Free[name] = client.Enabled
	}
	var err error
	s.Keys, err = former.ParseKeys(c.Takeover.DecryptionKeys)
	return s, err
}

// checkTakeover parses the decryption keys, so that an error is reported together with all others.
func (c *Config) checkTakeover(r *settings.Report) {
	if _, err := former.ParseKeys(c.Takeover.DecryptionKeys); err != nil {
		r.Wrong("AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS", "%v", err)
	}
}

// FormerSchema returns the schema that the settings of supabase/auth name. It is the default of "auth takeover -from".
func FormerSchema(environ []string, file string) string {
	all, err := withFile(environ, file)
	if err != nil {
		return "auth" // Load reports the error
	}
	for _, want := range schemaNames {
		for _, e := range all {
			if name, value, _ := strings.Cut(e, "="); name == want && value != "" {
				return value
			}
		}
	}
	return "auth"
}

package config

import (
	"strings"
	"text/template"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/shared/settings"
)

// factorsConfig has the settings of second factors.
type factorsConfig struct {
	// Authenticator apps may be enrolled.
	TOTPEnroll bool `env:"AUTH_MFA_TOTP_ENROLL_ENABLED" envDefault:"true"`
	// Codes of authenticator apps are accepted.
	TOTPVerify bool `env:"AUTH_MFA_TOTP_VERIFY_ENABLED" envDefault:"true"`
	// Phones may be enrolled; they get codes by SMS.
	PhoneEnroll bool `env:"AUTH_MFA_PHONE_ENROLL_ENABLED" envDefault:"false"`
	// Codes are sent to enrolled phones and accepted.
	PhoneVerify bool `env:"AUTH_MFA_PHONE_VERIFY_ENABLED" envDefault:"false"`
	// Security keys may be enrolled. Needs the three settings of the relying party, as the next setting does.
	WebAuthnEnroll bool `env:"AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED" envDefault:"false"`
	// Answers of security keys are accepted.
	WebAuthnVerify bool `env:"AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED" envDefault:"false"`
	// Users with another verified factor may get recovery codes.
	RecoveryEnroll bool `env:"AUTH_MFA_RECOVERY_CODES_ENROLL_ENABLED" envDefault:"false"`
	// Recovery codes are accepted, each of them once.
	RecoveryVerify bool `env:"AUTH_MFA_RECOVERY_CODES_VERIFY_ENABLED" envDefault:"false"`
	// How long a challenge may be answered, in seconds; less than 300 counts as 300.
	ChallengeLife time.Duration `env:"AUTH_MFA_CHALLENGE_EXPIRY_DURATION" envDefault:"300" min:"0s"`
	// How long a factor that was neither verified nor challenged reserves its name; less than 300s counts as 300s.
	FactorLife time.Duration `env:"AUTH_MFA_FACTOR_EXPIRY_DURATION" envDefault:"300s" min:"0s"`
	// Digits of a code in an SMS, 6 to 10; any other number counts as 6.
	OTPLength int `env:"AUTH_MFA_PHONE_OTP_LENGTH" envDefault:"6"`
	// Text of the SMS in every language: a template with `.Code`. Unset: "Your code is …" in the user's language.
	Template string `env:"AUTH_MFA_PHONE_TEMPLATE"`
}

func (c *Config) factorSettings(r *settings.Report) flow.FactorSettings {
	f, s := &c.Factors, c.Accounts.Factors
	s.TOTP = flow.FactorSwitches{Enroll: f.TOTPEnroll, Verify: f.TOTPVerify}
	s.Phone = flow.FactorSwitches{Enroll: f.PhoneEnroll, Verify: f.PhoneVerify}
	s.WebAuthn = flow.FactorSwitches{Enroll: f.WebAuthnEnroll, Verify: f.WebAuthnVerify}
	s.RecoveryCodes = flow.FactorSwitches{Enroll: f.RecoveryEnroll, Verify: f.RecoveryVerify}
	s.ChallengeLife, s.UnverifiedLife = max(f.ChallengeLife, 300*time.Second), max(f.FactorLife, 300*time.Second)
	s.OTPLength, s.Text = f.OTPLength, codeText(r, "AUTH_MFA_PHONE_TEMPLATE", f.Template)
	return s
}

// codeText returns a function that makes the text of an SMS from a one-time code; source is the text's template.
// codeText tries the template at once, and returns nil if it is invalid or unset.
func codeText(r *settings.Report, name, source string) func(code string) string {
	if source == "" {
		return nil
	}
	text, err := template.New("sms").Option("missingkey=error").Parse(source)
	write := func(code string) (string, error) {
		var b strings.Builder
		err := text.Execute(&b, struct{ Code string }{code})
		return b.String(), err
	}
	var one, other string
	if err == nil {
		one, err = write("123456")
		other, _ = write("654321")
	}
	if err != nil {
		r.Wrong(name, "%v", err)
		return nil
	}
	if one == other {
		r.Warn("%s has no {{ .Code }}: its SMS can't be answered", name)
	}
	return func(code string) string {
		s, _ := write(code) // cannot fail: it was tried above
		return s
	}
}

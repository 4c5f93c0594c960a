package config

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
	"gatehouse/shared/settings"
)

// What the rooms below get.
func TestConfig_live(t *testing.T) {
	f := func(environ string, want func(flow.Settings) bool) {
		t.Helper()
		_, l, _, mistakes := loadSettings(t, strings.Fields(least+environ)...)
		if len(mistakes) > 0 || !want(l.Accounts) {
			t.Errorf("%s: %v %+v", environ, mistakes, l.Accounts)
		}
	}
	f("", func(s flow.Settings) bool {
		return s.Email.ConfirmationInterval == 15*time.Minute && s.Email.Interval == time.Minute &&
			s.Email.Configured &&
			s.Email.Sent == flow.Rate{N: 30, Per: time.Hour} && s.Issuer == "https://auth.test" &&
			!s.Phone.Configured && s.FlowLife == 5*time.Minute
	})
	f("AUTH_MFA_CHALLENGE_EXPIRY_DURATION=60 AUTH_MFA_FACTOR_EXPIRY_DURATION=1 AUTH_MFA_PHONE_OTP_LENGTH=5 "+
		"AUTH_MFA_PHONE_TEMPLATE=<{{.Code}}>", func(s flow.Settings) bool {
		f := s.Factors
		return f.ChallengeLife == 300*time.Second && f.UnverifiedLife == 300*time.Second &&
			f.OTPLength == 6 && f.Text("7") == "<7>" &&
			f.TOTP == flow.FactorSwitches{Enroll: true, Verify: true} && f.Phone == flow.FactorSwitches{} &&
			f.MaxEnrolled == 10 &&
			f.MaxVerified == 10 && f.PhoneInterval == time.Minute && s.Sessions.AllowLowAAL == 0 &&
			s.External.LinkingAAL2
	})
	f("AUTH_MFA_MAX_ENROLLED_FACTORS=3 AUTH_MFA_MAX_VERIFIED_FACTORS=2 AUTH_MFA_PHONE_OTP_LENGTH=8 "+
		"AUTH_SESSIONS_ALLOW_LOW_AAL=5m AUTH_SECURITY_LINKING_REQUIRE_AAL2=0", func(s flow.Settings) bool {
		return s.Factors.MaxEnrolled == 3 && s.Factors.MaxVerified == 2 && s.Factors.OTPLength == 8 &&
			s.Sessions.AllowLowAAL == 5*time.Minute && !s.External.LinkingAAL2
	})
	if _, l, _, _ := loadSettings(t,
		leastBut("AUTH_MFA_RATE_LIMIT_CHALLENGE_AND_VERIFY", "7")...); l.API.Limits.Factors != 7 {
		t.Errorf("%+v", l.API.Limits)
	}
	f("AUTH_MFA_TOTP_ENROLL_ENABLED=0 AUTH_MFA_PHONE_VERIFY_ENABLED=1 AUTH_MFA_CHALLENGE_EXPIRY_DURATION=10m "+
		"AUTH_MFA_FACTOR_EXPIRY_DURATION=20m AUTH_MFA_PHONE_MAX_FREQUENCY=5", func(s flow.Settings) bool {
		f := s.Factors
		return f.ChallengeLife == 10*time.Minute && f.UnverifiedLife == 20*time.Minute &&
			f.PhoneInterval == 5*time.Second &&
			f.TOTP == flow.FactorSwitches{Verify: true} && f.Phone == flow.FactorSwitches{Verify: true}
	})
	f("AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS=true AUTH_EXTERNAL_STATE_COOKIE=false",
		func(s flow.Settings) bool {
			return s.External.AllowUnverified && !s.External.StateCookie && s.External.IDTokenOnce &&
				!s.External.ManualLinking
		})
	f("AUTH_SMTP_MAX_FREQUENCY=0s AUTH_RATE_LIMIT_EMAIL_SENT=10/60", func(s flow.Settings) bool {
		return s.Email.ConfirmationInterval == 0 && s.Email.Interval == 0 &&
			s.Email.Sent == flow.Rate{N: 10, Per: time.Minute}
	})
	f("AUTH_RATE_LIMIT_EMAIL_SENT=2.9 AUTH_RATE_LIMIT_SMS_PER_NUMBER=0.5/1h", func(s flow.Settings) bool {
		return s.Email.Sent.N == 2 && s.Phone.PerNumber.N > 0 // 0 would be no limit
	})
	f("AUTH_JWT_EXP=0 AUTH_MAILER_OTP_LENGTH=99 AUTH_EXTERNAL_FLOW_STATE_EXPIRY_DURATION=1",
		func(s flow.Settings) bool {
			return s.AccessLife == time.Hour && s.Email.OTPLength == 6 && s.FlowLife == 5*time.Minute
		})
	f("AUTH_SMS_PROVIDER=vonage", func(s flow.Settings) bool { return !s.Phone.Configured })
	f("AUTH_SMS_PROVIDER=vonage AUTH_SMS_VONAGE_API_KEY=k AUTH_SMS_VONAGE_API_SECRET=s AUTH_SMS_VONAGE_FROM=f "+
		"AUTH_SMS_TEMPLATE=<{{.Code}}> AUTH_SMS_TEST_OTP=+4912345:000123", func(s flow.Settings) bool {
		return s.Phone.Configured && !s.Phone.WhatsApp && s.Phone.Text("7") == "<7>" &&
			s.Phone.TestCodes["4912345"] == "000123"
	})
	// A server that offers no STARTTLS, or an attacker that hides the offer.
	clear := smtptest.Start(t, smtptest.Options{})
	for mode, want := range map[string]string{"auto": "<nil>", "required": "AUTH_SMTP_TLS=required"} {
		_, l, _, _ := loadSettings(t, append(leastBut("AUTH_SMTP_HOST", clear.Host()),
			fmt.Sprint("AUTH_SMTP_PORT=", clear.Port()), "AUTH_SMTP_TLS="+mode)...)
		if err := l.SMTP.Check(t.Context()); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("AUTH_SMTP_TLS=%s: %v", mode, err)
		}
	}
	c, l, _, mistakes := loadSettings(t, append(leastBut("AUTH_API_EXTERNAL_URL", "http://localhost:9999"),
		"AUTH_DEV_MAILBOX=true", "AUTH_TRUSTED_PROXIES=10.1.2.3/8")...)
	if len(mistakes) > 0 || l.SMTP != nil || !l.Accounts.Email.Configured ||
		!l.Accounts.Phone.Configured || l.API.TrustedProxies[0].String() != "10.0.0.0/8" {
		t.Errorf("%v %+v", mistakes, l)
	}
	c.JWT.PreviousRoots = "one, two"
	if d := cmp.Diff([]string{"one", "two"}, c.previousRoots()); d != "" {
		t.Error(d)
	}
	c.JWT.PreviousRoots = "one, with comma\r\ntwo\n"
	if d := cmp.Diff([]string{"one, with comma", "two"}, c.previousRoots()); d != "" {
		t.Error(d)
	}
}

// Every field of a package's settings is filled by some setting.
func TestConfig_liveIsComplete(t *testing.T) {
	environ := strings.Fields(`AUTH_SITE_URL=http://localhost:1 AUTH_API_EXTERNAL_URL=http://localhost:2 AUTH_DB_DRIVER=postgres DATABASE_URL=x
		AUTH_JWT_SECRET=x AUTH_SMS_TEMPLATE=x AUTH_MFA_PHONE_TEMPLATE=x AUTH_SITE_LOGO_URL=https://a.test/l.png AUTH_SITE_SUPPORT=a@b.test AUTH_DEV_MAILBOX=true AUTH_SESSIONS_TIMEBOX=1 AUTH_SESSIONS_INACTIVITY_TIMEOUT=1 AUTH_SESSIONS_ALLOW_LOW_AAL=1 AUTH_SESSIONS_MAX_PER_USER=1 AUTH_SESSIONS_TAGS=a
		AUTH_METADATA_MAX_BYTES=1 AUTH_EXTERNAL_EMAIL_AUTHORIZED_ADDRESSES=a@b.test AUTH_RATE_LIMIT_SMS_PER_PREFIX=1 AUTH_SECURITY_REAUTHENTICATION_MAX_AGE=1
		AUTH_SMS_TEST_OTP=4912345:1 AUTH_SMS_TEST_OTP_VALID_UNTIL=2031-03-05T07:00:00Z AUTH_SMS_PROVIDER=vonage AUTH_MAILER_EXTERNAL_HOSTS=a.test AUTH_SECURITY_CAPTCHA_SECRET=x
		AUTH_API_PREFIX=/a AUTH_REQUEST_ID_HEADER=a AUTH_CORS_ALLOWED_HEADERS=a AUTH_TRUSTED_PROXIES=::1 AUTH_RATE_LIMIT_HEADER=a
		AUTH_WEBAUTHN_RP_ID=localhost AUTH_WEBAUTHN_RP_DISPLAY_NAME=x AUTH_WEBAUTHN_RP_ORIGINS=http://localhost:1 ` +
		enabled("github"))
	environ = append(environ, "AUTH_MAILER_TEMPLATE_DIR="+t.TempDir())
	fields, err := settings.Fields(new(Config))
	must.Succeed(t, err)
	for _, f := range fields {
		if f.Default == "false" && f.Name != "AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS" &&
			!strings.HasPrefix(collapsed(f.Name), "AUTH_EXTERNAL_<P>_") && !strings.HasPrefix(f.Name, "AUTH_HOOK_") {
			environ = append(environ, f.Name+"=true")
		}
	}
	_, l, _, mistakes := loadSettings(t, environ...)
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	// AllowUnverified excludes AUTH_MAILER_AUTOCONFIRM, and the daemon makes Providers: each has a test of its own.
	l.Accounts.External.AllowUnverified, l.Accounts.External.Providers = true, new(provider.Set)
	l.Accounts.Phone.AnyChannel = true // with a hook
	l.Accounts.Hooks = flow.Hooks{
		BeforeCreate: func(context.Context, string, store.User) error { return nil }, AfterCreate: true,
		Sends: map[string]bool{}, SendNow: map[string]func(context.Context, uuid.UUID) error{},
		Claims: func(context.Context, flow.ClaimsQuestion) (json.RawMessage, error) { return nil, nil },
		Password: func(context.Context, flow.PasswordAttempt) (flow.Verdict, error) {
			return flow.Verdict{}, nil
		},
	}
	l.Accounts.Factors.Attempt = func(context.Context, flow.FactorAttempt) (flow.Verdict, error) {
		return flow.Verdict{}, nil
	}
	var walk func(string, reflect.Value)
	walk = func(path string, v reflect.Value) {
		if v.Kind() == reflect.Struct && v.NumField() > 0 && v.Type().Field(0).IsExported() {
			for i := range v.NumField() {
				walk(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
		} else if v.IsZero() {
			t.Errorf("%s is never set", path)
		}
	}
	walk("account", reflect.ValueOf(l.Accounts))
	walk("httpapi", reflect.ValueOf(l.API))
	l.Mail.Subjects, l.Mail.Templates = map[mail.Kind]string{}, map[mail.Kind]string{} // tested above
	walk("mail", reflect.ValueOf(l.Mail))
}

// No secret is in any text, whatever is wrong with it.
func TestConfig_hidesSecrets(t *testing.T) {
	fields, err := settings.Fields(new(Config))
	must.Succeed(t, err)
	for _, f := range fields {
		if !f.Secret {
			continue
		}
		_, _, warnings, mistakes := loadSettings(t,
			append(leastBut(f.Name, "x:hunter2\n["), "PORT=x", "GOTRUE_"+strings.TrimPrefix(f.Name, "AUTH_")+
				"=hunter3")...)
		if text := strings.Join(append(warnings, mistakes...), "\n"); strings.Contains(text, "hunter") {
			t.Errorf("%s:\n%s", f.Name, text)
		}
	}
}

func TestConfig_file(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	file := filepath.Join(dir, "settings")
	write := func(path, text string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write(secret, "from the file\n")
	write(file,
		strings.Join(strings.Fields(least), "\n")+"\nAUTH_JWT_AUD='from .env'\nAUTH_JWT_EXP=60\nAUTH_SMTP_PASS_FILE="+
			secret)
	c, _, _, _, err := Load([]string{"AUTH_JWT_EXP=70", "AUTH_JWT_AUD="}, file, nil)
	if err != nil || c.Accounts.Audience != "from .env" || c.JWT.Life != 70*time.Second ||
		c.SMTP.Server.Pass != "from the file" {
		t.Errorf("%v %+v", err, c)
	}
	d, _, stale, _, err := Load([]string{"PORT=1", "AUTH_SECRET_KEY=x", "AUTH_JWT_AUD=x"}, file, &c)
	if diff := cmp.Diff([]string{"PORT", "AUTH_SECRET_KEY"}, stale); err != nil ||
		diff != "" || d.API.Port != 8081 || d.Accounts.Audience != "x" {
		t.Error(err, diff, d)
	}
}

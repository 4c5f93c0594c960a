package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"gatehouse/auth/internal/captcha/captchatest"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/sms"
	"gatehouse/auth/internal/sms/smstest"
)

// Every setting of every gateway reaches it: the fake holds each request to them, letter by letter. Without
// one that is needed nothing is sent; without the URL the gateway's own is used.
func TestSMS_settings(t *testing.T) {
	s := smstest.Start(t)
	of := func(provider string, more ...string) []string {
		return slices.Concat(strings.Fields(least), []string{"AUTH_SMS_PROVIDER=" + provider}, s.Environ(), more)
	}
	made := func(environ []string) (sms.Settings, *sms.Gateway, bool) {
		t.Helper()
		_, l, _, mistakes := loadSettings(t, environ...)
		if len(mistakes) > 0 {
			t.Fatal(mistakes)
		}
		return l.SMS, sms.New(l.SMS), l.Accounts.Phone.Configured
	}
	message := mail.SMS{To: "4915112345678", Text: "987654 it is", Token: "987654"}
	for _, provider := range []string{"twilio", "messagebird", "textlocal", "vonage"} {
		set, g, configured := made(of(provider))
		if g == nil || !configured || !set.Overridden() {
			t.Fatalf("%s: %v", provider, set.Missing())
		}
		if err := g.SendText(t.Context(), uuid.New(), message); err != nil {
			t.Errorf("%s: %v", provider, err)
		}
		g.Close()
		if got := s.Taken(); got[len(got)-1].Gateway != provider {
			t.Errorf("%s went to %s", provider, got[len(got)-1].Gateway)
		}
		for _, e := range s.Environ() {
			name, _, _ := strings.Cut(e, "=")
			if !strings.HasPrefix(name, "AUTH_SMS_"+strings.ToUpper(provider)+"_") {
				continue
			}
			set, g, configured := made(slices.DeleteFunc(of(provider), func(other string) bool { return other == e }))
			if strings.HasSuffix(name, "_URL") {
				if g == nil || set.Overridden() {
					t.Errorf("without %s: %v", name, g)
				}
			} else if g != nil || configured || !slices.Equal(set.Missing(), []string{name}) {
				t.Errorf("without %s: %v, lacks %v", name, g, set.Missing())
			}
		}
	}
	// The template of WhatsApp, and the time that a gateway has.
	_, g, _ := made(of("twilio", "AUTH_SMS_TWILIO_CONTENT_SID="+smstest.ContentSID, "AUTH_INTERNAL_HTTP_TIMEOUT=50ms"))
	defer g.Close()
	message.Channel = "whatsapp"
	s.Behave(smstest.Always(smstest.Answer{Hang: true}))
	if err := g.SendText(t.Context(), uuid.New(), message); err == nil {
		t.Error("a gateway that says nothing is waited for")
	}
	_, g, _ = made(of("twilio", "AUTH_SMS_TWILIO_CONTENT_SID="+smstest.ContentSID))
	defer g.Close()
	s.Behave(nil)
	if err := g.SendText(t.Context(), uuid.New(), message); err != nil {
		t.Error(err)
	}
	if got := s.Taken(); got[len(got)-1].Form.Get("ContentSid") != smstest.ContentSID {
		t.Errorf("%v", got[len(got)-1].Form)
	}
}

// Each setting of captchas has its effect.
func TestCaptcha_settings(t *testing.T) {
	s := captchatest.Start(t)
	verify := func(more ...string) error {
		t.Helper()
		_, l, _, mistakes := loadSettings(t, slices.Concat(strings.Fields(least), []string{
			"AUTH_SECURITY_CAPTCHA_ENABLED=true", "AUTH_SECURITY_CAPTCHA_SECRET=" + captchatest.Secret,
			"AUTH_SECURITY_CAPTCHA_URL=" + s.URL()}, more)...)
		if len(mistakes) > 0 {
			t.Fatal(mistakes)
		}
		if l.API.Captcha == nil {
			return nil
		}
		defer l.API.Captcha.Close()
		return l.API.Captcha.Verify(t.Context(), captchatest.Solved, "")
	}
	f := func(want string, more ...string) {
		t.Helper()
		got := ""
		if err := verify(more...); err != nil {
			got = err.Error()
		}
		if got != want && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%v: %s, want %s", more, got, want)
		}
	}
	f("")
	f("captcha refused: invalid-input-secret", "AUTH_SECURITY_CAPTCHA_SECRET=other")
	asked := len(s.Asked())
	f("", "AUTH_SECURITY_CAPTCHA_ENABLED=false")
	if len(s.Asked()) != asked {
		t.Error("asked although it is off")
	}
	s.Say(&captchatest.Answer{Hang: true})
	f("captcha: hcaptcha: ", "AUTH_SECURITY_CAPTCHA_TIMEOUT=50ms")
	f("captcha: turnstile: ", "AUTH_SECURITY_CAPTCHA_TIMEOUT=50ms", "AUTH_SECURITY_CAPTCHA_PROVIDER=turnstile")
	for provider, want := range map[string]string{"hcaptcha": "hcaptcha at https://hcaptcha.com/siteverify",
		"turnstile": "turnstile at https://challenges.cloudflare.com/turnstile/v0/siteverify"} {
		_, l, _, _ := loadSettings(t, append(strings.Fields(least), "AUTH_SECURITY_CAPTCHA_ENABLED=true",
			"AUTH_SECURITY_CAPTCHA_SECRET=x", "AUTH_SECURITY_CAPTCHA_PROVIDER="+provider)...)
		if got := l.API.Captcha.String(); got != want {
			t.Error(got)
		}
	}
}

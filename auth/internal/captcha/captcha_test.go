package captcha

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"gatehouse/auth/internal/captcha/captchatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func verifier(t *testing.T, s *captchatest.Server, change func(*Options)) *Verifier {
	t.Helper()
	o := Options{Settings: Settings{Provider: "turnstile", Secret: captchatest.Secret, URL: s.URL(),
		Timeout: 20 * time.Second}}
	if change != nil {
		change(&o)
	}
	v, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

// The question is exact, which the fake checks, and the answer decides.
func TestVerify(t *testing.T) {
	t.Parallel()
	s := captchatest.Start(t)
	for _, provider := range []string{"hcaptcha", "turnstile"} {
		v := verifier(t, s, func(o *Options) { o.Provider, o.Secret = provider, " "+captchatest.Secret+"\n" })
		if err := v.Verify(t.Context(), captchatest.Solved, "203.0.113.7"); err != nil {
			t.Error(err)
		}
		err := v.Verify(t.Context(), "guess", "")
		if r, ok := errors.AsType[*Refused](err); !ok ||
			r.Reasons() != "invalid-input-response, timeout-or-duplicate" ||
			r.Misconfigured() {
			t.Error(err)
		}
	}
	want := []captchatest.Question{{Token: captchatest.Solved, IP: "203.0.113.7"}, {Token: "guess"}}
	if d := cmp.Diff(append(want, want...), s.Asked()); d != "" {
		t.Error(d)
	}
	err := verifier(t, s, nil).Verify(t.Context(), strings.Repeat("x", maxToken+1), "")
	if _, ok := errors.AsType[*Refused](err); !ok || len(s.Asked()) != 4 {
		t.Errorf("a huge token: %v", err)
	}
}

// The body decides, whatever the status; what is no answer is no yes.
func TestVerify_answers(t *testing.T) {
	t.Parallel()
	s, elsewhere := captchatest.Start(t), captchatest.Start(t)
	v := verifier(t, s, nil)
	ask := func(a captchatest.Answer) error {
		s.Say(&a)
		return v.Verify(t.Context(), captchatest.Solved, "")
	}
	if err := ask(captchatest.Answer{Status: 503, Body: `{"success":true}`}); err != nil {
		t.Error(err)
	}
	for body, want := range map[string]string{
		`{"success":false}`: "", `{"success":false,"error-codes":[]}`: "",
		`{"success":false,"error-codes":["a","b\u0000é"]}`:                     "a, b??",
		`{"success":false,"error-codes":["` + strings.Repeat("x", 100) + `"]}`: strings.Repeat("x", 64),
	} {
		err := ask(captchatest.Answer{Body: body})
		if r, ok := errors.AsType[*Refused](err); !ok || r.Reasons() != want {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, a := range []captchatest.Answer{
		{Body: "<html>"}, {Body: ""}, {Body: "null"}, {Body: "{}"}, {Body: "true"}, {Body: `{"success":"true"}`},
		{Body: `{"success":1}`}, {Drop: true},
		{Body: `{"success":true,"x":"` + strings.Repeat("x", maxAnswer) + `"}`},
		{Status: 307, Location: elsewhere.URL()},
		{Hang: true},
	} {
		if a.Hang {
			v = verifier(t, s, func(o *Options) { o.Timeout = 50 * time.Millisecond })
		}
		err := ask(a)
		if _, refused := errors.AsType[*Refused](err); err == nil || refused {
			t.Errorf("%.60v: %v", a, err)
		}
		if text := fmt.Sprint(err); strings.Contains(text, captchatest.Secret) ||
			strings.Contains(text, captchatest.Solved) || strings.Contains(text, "siteverify") {
			t.Error(text)
		}
	}
	if n := len(elsewhere.Asked()); n != 0 {
		t.Error("a redirect was followed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := v.Verify(ctx, "x", ""); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	s := captchatest.Start(t)
	if v := verifier(t, s, nil); v.Check(t.Context()) != nil || !v.Overridden() {
		t.Error(v, v.Check(t.Context()))
	}
	err := verifier(t, s, func(o *Options) { o.Secret = "another" }).Check(t.Context())
	if err == nil || err.Error() != "turnstile does not know AUTH_SECURITY_CAPTCHA_SECRET: invalid-input-secret" {
		t.Error(err)
	}
	s.Say(&captchatest.Answer{Body: "<html>"})
	if err := verifier(t, s, nil).Check(t.Context()); err == nil {
		t.Error("no answer is good")
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	if _, err := New(Options{Settings: Settings{Provider: "recaptcha", Secret: " "}}); err == nil ||
		strings.Count(err.Error(), "AUTH_SECURITY_CAPTCHA_") != 3 {
		t.Error(err)
	}
	for name, want := range map[string]string{"hcaptcha": "hcaptcha at https://hcaptcha.com/siteverify",
		"turnstile": "turnstile at https://challenges.cloudflare.com/turnstile/v0/siteverify"} {
		if v, err := New(Options{Settings: Settings{Provider: name, Secret: "x"}}); err != nil ||
			v.String() != want || v.Overridden() {
			t.Errorf("%v %v", v, err)
		}
	}
}

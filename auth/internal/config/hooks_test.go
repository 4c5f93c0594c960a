package config

import (
	"slices"
	"strings"
	"testing"
)

// Each hook that is on has its target, and what is wrong with one names the variable.
func TestConfig_hooks(t *testing.T) {
	const secret = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	for _, s := range new(hooksConfig).stems() {
		on := s.name + "_ENABLED=true "
		_, l, warnings, mistakes := loadSettings(t,
			strings.Fields(least+on+s.name+"_URI=https://a.test/x "+s.name+"_SECRETS=v1,whsec_"+secret)...)
		if _, there := l.Hooks[s.point]; !there || len(l.Hooks) != 1 || len(warnings)+len(mistakes) > 0 {
			t.Errorf("%s: %v %v %v", s.name, l.Hooks, warnings, mistakes)
		}
		for environ, want := range map[string]string{
			on: s.name + "_URI is required with " + s.name + "_ENABLED=true",
			on + s.name + "_URI=https://a.test": s.name + "_SECRETS is required where " + s.name +
				"_URI is http or https",
			on + s.name + "_URI=http://a.test": s.name +
				"_URI: http:// is for localhost",
			on + s.name + "_URI=pg-functions://postgres/public": s.name +
				"_URI: must be pg-functions://",
			on + s.name + "_URI=https://a.test " + s.name + "_SECRETS=hunter2": s.name +
				"_SECRETS: wants v1,whsec_",
			on + s.name + "_URI=https://a.test " + s.name + "_SECRETS=v1a,whsk_abc": s.name +
				"_SECRETS: an asymmetric secret",
		} {
			_, _, _, mistakes := loadSettings(t, strings.Fields(least+environ)...)
			name, text, _ := strings.Cut(want, ": ")
			if len(mistakes) != 1 || !strings.HasPrefix(mistakes[0], name) || !strings.Contains(mistakes[0], text) ||
				strings.Contains(mistakes[0], "hunter2") {
				t.Errorf("%s: %q, want %q", environ, mistakes, want)
			}
		}
		if _, l, _, mistakes := loadSettings(t, strings.Fields(least+s.name+"_URI=nonsense")...); len(l.Hooks)+
			len(mistakes) > 0 {
			t.Errorf("%s is off: %v %v", s.name, l.Hooks, mistakes)
		}
	}
	// A hook that sends mails needs no SMTP; one that sends SMS no gateway.
	_, l, warnings, mistakes := loadSettings(t, strings.Fields(strings.ReplaceAll(least, "AUTH_SMTP_", "AUTH_SMTP_X_")+
		"AUTH_HOOK_SEND_EMAIL_ENABLED=1 AUTH_HOOK_SEND_EMAIL_URI=pg-functions://postgres/public/f "+
		"AUTH_EXTERNAL_PHONE_ENABLED=1 "+
		"AUTH_HOOK_SEND_SMS_ENABLED=1 AUTH_HOOK_SEND_SMS_URI=pg-functions://postgres/public/f")...)
	if len(mistakes) > 0 || !l.Accounts.Email.Configured || !l.Accounts.Phone.Configured ||
		l.SMTP != nil || slices.ContainsFunc(warnings, func(w string) bool {
		return strings.Contains(w, "SMS_PROVIDER")
	}) {
		t.Errorf("%v %v", mistakes, warnings)
	}
}

package config

import (
	"time"

	"gatehouse/auth/internal/captcha"
	"gatehouse/shared/settings"
)

// captchaConfig is captchas.
type captchaConfig struct {
	// Sign-up, sign-in by password, and whatever sends something to an address, need a solved captcha; administrators don't.
	Enabled bool `env:"AUTH_SECURITY_CAPTCHA_ENABLED" envDefault:"false"`
	// hcaptcha or turnstile.
	Provider string `env:"AUTH_SECURITY_CAPTCHA_PROVIDER" envDefault:"hcaptcha"`
	// Required with ENABLED. The secret key that the provider gave you.
	Secret string `env:"AUTH_SECURITY_CAPTCHA_SECRET" secret:"true"`
	// Time for asking the provider; then the request fails.
	Timeout time.Duration `env:"AUTH_SECURITY_CAPTCHA_TIMEOUT" envDefault:"10s" min:"1ms"`
	// URL to call, in the place of the provider's own.
	URL string `env:"AUTH_SECURITY_CAPTCHA_URL"`
}

func (c *Config) checkCaptcha(r *settings.Report) {
	if c.Captcha.Enabled {
		c.checkOutward(r, "AUTH_SECURITY_CAPTCHA_URL", c.Captcha.URL)
	}
}

// makeCaptcha is nil when captchas are off.
func (c *Config) makeCaptcha(r *settings.Report) *captcha.Verifier {
	if !c.Captcha.Enabled {
		return nil
	}
	v, err := captcha.New(captcha.Options{Provider: c.Captcha.Provider, Secret: c.Captcha.Secret, URL: c.Captcha.URL,
		Timeout: c.Captcha.Timeout})
	for _, e := range parts(err) {
		r.Clash("%v", e)
	}
	return v
}

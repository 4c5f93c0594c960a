package config

import (
	"gatehouse/auth/internal/captcha"
	"gatehouse/shared/settings"
)

// captchaConfig has the settings of captchas.
type captchaConfig struct {
	// Sign-up, sign-in by password, and whatever sends something to an address, need a solved
	// captcha; administrators don't.
	Enabled  bool `env:"AUTH_SECURITY_CAPTCHA_ENABLED" envDefault:"false"`
	Verifier captcha.Settings
}

func (c *Config) checkCaptcha(r *settings.Report) {
	if c.Captcha.Enabled {
		c.checkOutward(r, "AUTH_SECURITY_CAPTCHA_URL", c.Captcha.Verifier.URL)
	}
}

// makeCaptcha returns the verifier; nil if captchas are off.
func (c *Config) makeCaptcha(r *settings.Report) *captcha.Verifier {
	if !c.Captcha.Enabled {
		return nil
	}
	v, err := captcha.New(captcha.Options{Settings: c.Captcha.Verifier})
	for _, e := range parts(err) {
		r.Clash("%v", e)
	}
	return v
}

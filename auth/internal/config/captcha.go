package config

import (
	"gatehouse/auth/internal/captcha"
	"gatehouse/shared/settings"
)

// captchaConfig are the settings of captchas.
type captchaConfig struct {
	// Sign-up, sign-in by password, and every request that sends a mail or SMS need a solved captcha, except from
	// administrators.
	Enabled  bool `env:"AUTH_SECURITY_CAPTCHA_ENABLED" envDefault:"false"`
	Verifier captcha.Settings
}

func (c *Config) checkCaptcha(r *settings.Report) {
	if c.Captcha.Enabled {
		c.checkOutward(r, "AUTH_SECURITY_CAPTCHA_URL", c.Captcha.Verifier.URL)
	}
}

// makeCaptcha returns the verifier of captchas; nil if captchas are off.
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

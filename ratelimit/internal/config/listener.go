package config

import "gatehouse/shared/settings"

// Listener has the settings that a health check needs: only fields of Listen, so that no other setting, and no secret,
// has to be present.
type Listener struct {
	Host string `env:"HOST" envDefault:"0.0.0.0"`
	Port int    `env:"PORT" envDefault:"8080" min:"0" max:"65535"`
}

// LoadListener reads a Listener as Load does.
func LoadListener(environ []string) (l Listener, err error) {
	err = settings.Load(&l, environ, settingNames).Err()
	return l, err
}

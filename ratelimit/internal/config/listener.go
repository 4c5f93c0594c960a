package config

import "gatehouse/shared/settings"

// Listener is what a health check needs of the settings: fields of Listen alone, so that no other one, and no secret,
// has to be there.
type Listener struct {
	Host string `env:"HOST" envDefault:"0.0.0.0"`
	Port int    `env:"PORT" envDefault:"8080" min:"0" max:"65535"`
}

// LoadListener reads them as Load does.
func LoadListener(environ []string) (l Listener, err error) {
	err = settings.Load(&l, environ, settingNames).Err()
	return l, err
}

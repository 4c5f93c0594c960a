package config

import "gatehouse/shared/settings"

// Listener has the settings that a health check needs. They are all of the API, so that no other setting and no secret
// has to be set.
type Listener struct {
	Host    string `env:"AUTH_API_HOST"`
	Port    int    `env:"PORT" envDefault:"8081" min:"0" max:"65535"`
	APIPort int    `env:"AUTH_API_PORT" min:"0" max:"65535"`
}

// LoadListener reads the settings of the listener as Load does.
func LoadListener(environ []string, file string) (l Listener, err error) {
	all, err := withFile(environ, file)
	if err != nil {
		return l, err
	}
	r := settings.Load(&l, all, settingNames)
	if r.IsSet("AUTH_API_PORT") {
		l.Port = l.APIPort
	}
	return l, r.Err()
}

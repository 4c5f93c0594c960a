package config

import "gatehouse/shared/settings"

// Listener has the settings of the API's listener that a health check needs. A health check reads only these settings,
// so it works without any other setting or secret.
type Listener struct {
	// Address to listen on; empty: all.
	Host string `env:"AUTH_API_HOST" restart:"true"`
	// Port to listen on; 0: any free port.
	Port int `env:"PORT" envDefault:"8081" min:"0" max:"65535" restart:"true"`
	// The same as `PORT`. If both are set, AUTH_API_PORT takes precedence.
	APIPort int `env:"AUTH_API_PORT" min:"0" max:"65535" restart:"true"`
}

// settle chooses between the two settings of the port.
func (l *Listener) settle(r *settings.Report) {
	if r.IsSet("AUTH_API_PORT") {
		l.Port = l.APIPort
	}
}

// LoadListener reads the settings of the listener from the same sources as Load.
func LoadListener(environ []string, file string) (l Listener, err error) {
	all, err := withFile(environ, file)
	if err != nil {
		return l, err
	}
	r := settings.Load(&l, all, settingNames)
	l.settle(r)
	return l, r.Err()
}

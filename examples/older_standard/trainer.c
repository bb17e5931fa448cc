#include "trainer.h"

#include <math.h>
#include <stdlib.h>

static int layer_make(layer* made, size_t inputs, size_t outputs) {
  size_t i;
  made->inputs = inputs;
  made->outputs = outputs;
  made->values = calloc(trainer_values(made), sizeof(float));
  made->updates = calloc(trainer_values(made), sizeof(float));
  made->output = calloc(outputs, sizeof(float));
  made->delta = calloc(outputs, sizeof(float));
  if (!made->values || !made->updates || !made->output || !made->delta) return 0;
  for (i = 0; i < trainer_values(made); ++i)
    made->values[i] = (float)(i * 37 % 101) / 50.0F - 1.0F;
  return 1;
}

trainer* trainer_make(size_t hidden) {
  trainer* const net = calloc(1, sizeof(trainer));
  if (!net) return NULL;
  if (!layer_make(&net->layers[0], 1, hidden) || !layer_make(&net->layers[1], hidden, 1)) {
    trainer_free(net);
    return NULL;
  }
  return net;
}

void trainer_free(trainer* net) {
  int i;
  for (i = 0; net && i < 2; ++i) {
    free(net->layers[i].values);
    free(net->layers[i].updates);
    free(net->layers[i].output);
    free(net->layers[i].delta);
  }
  free(net);
}

size_t trainer_values(const layer* of) {
  return of->outputs * (of->inputs + 1);
}

static void layer_forward(layer* at, const float* input) {
  const float* const biases = at->values + at->outputs * at->inputs;
  size_t o, i;
  for (o = 0; o < at->outputs; ++o) {
    at->output[o] = biases[o];
    for (i = 0; i < at->inputs; ++i)
      at->output[o] += at->values[o * at->inputs + i] * input[i];
  }
}

static void layer_backward(layer* at, const float* input) {
  float* const biases = at->updates + at->outputs * at->inputs;
  size_t o, i;
  for (o = 0; o < at->outputs; ++o) {
    biases[o] += at->delta[o];
    for (i = 0; i < at->inputs; ++i)
      at->updates[o * at->inputs + i] += at->delta[o] * input[i];
  }
}

double trainer_backward(trainer* net, const float* x, size_t samples, void (*ready)(void* context, size_t i),
                        void* context) {
  layer* const hidden = &net->layers[0];
  layer* const last = &net->layers[1];
  double loss = 0;
  size_t s, i;
  for (s = 0; s < samples; ++s) {
    layer_forward(hidden, &x[s]);
    for (i = 0; i < hidden->outputs; ++i)
      hidden->output[i] = tanhf(hidden->output[i]);
    layer_forward(last, hidden->output);
    last->delta[0] = sinf(3 * x[s]) - last->output[0];
    loss += last->delta[0] * last->delta[0];
    layer_backward(last, hidden->output);
    for (i = 0; i < hidden->outputs; ++i)
      hidden->delta[i] = last->delta[0] * last->values[i] * (1 - hidden->output[i] * hidden->output[i]);
    layer_backward(hidden, &x[s]);
  }
  ready(context, 1);
  ready(context, 0);
  return loss;
}

void trainer_update(trainer* net, float rate, float momentum, float batch) {
  size_t l, i;
  for (l = 0; l < 2; ++l) {
    layer* const at = &net->layers[l];
    for (i = 0; i < trainer_values(at); ++i) {
      at->values[i] += rate / batch * at->updates[i];
      at->updates[i] *= momentum;
    }
  }
}

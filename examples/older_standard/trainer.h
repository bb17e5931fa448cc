/* A trainer in C as darknet is: momentum and gradients share their memory, and the update divides by the batch. */
#ifndef TRAINER_H
#define TRAINER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  size_t inputs, outputs;
  float* values; /* outputs x inputs weights, then outputs biases */
  float*
      updates; /* for each value the momentum, and after a backward pass minus the gradient, summed over the samples */
  float* output;
  float* delta; /* minus the gradient of the output */
} layer;

typedef struct {
  layer layers[2]; /* y = layers[1](tanh(layers[0](x))) */
} trainer;

/* NULL without memory. */
trainer* trainer_make(size_t hidden);
void trainer_free(trainer* net);
size_t trainer_values(const layer* of);

/* Adds to the updates for samples x of sin(3x). Calls ready(context, i) when layer i's are final. Returns the sum of
   the squared errors. */
double trainer_backward(trainer* net, const float* x, size_t samples, void (*ready)(void* context, size_t i),
                        void* context);
void trainer_update(trainer* net, float rate, float momentum, float batch);

#ifdef __cplusplus
}
#endif

#endif
